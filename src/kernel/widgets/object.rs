//! JSON objects whose values stay text until somebody asks for one: what is not translated is not written anew.

use std::fmt;

use serde::de::{DeserializeOwned, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

/// Where in a state a buffer belongs: keys and indices.
pub(super) type Path = Vec<Value>;

/// An object in the order in which it was written.
#[derive(Debug, Clone, Default)]
pub(super) struct Object(Vec<(String, Box<RawValue>)>);

impl Object {
    pub(super) fn get(&self, key: &str) -> Option<&RawValue> {
        self.0.iter().find(|(k, _)| k == key).map(|(_, v)| &**v)
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// The value, read as `T`, where there is one that is a `T`.
    pub(super) fn parsed<T: DeserializeOwned>(&self, key: &str) -> Option<T> {
        serde_json::from_str(self.get(key)?.get()).ok()
    }

    pub(super) fn text(&self, key: &str) -> Option<String> {
        self.parsed(key)
    }

    /// Sets a value where it stands, or at the end.
    pub(super) fn set(&mut self, key: &str, value: &impl Serialize) {
        self.set_raw(key, raw(value));
    }

    /// [`Self::set`] for a value in its text form.
    pub(super) fn set_raw(&mut self, key: &str, value: Box<RawValue>) {
        match self.0.iter_mut().find(|(k, _)| k == key) {
            Some((_, old)) => *old = value,
            None => self.0.push((key.to_owned(), value)),
        }
    }

    /// Sets a value only where there is one.
    pub(super) fn replace(&mut self, key: &str, value: Box<RawValue>) {
        if self.has(key) {
            self.set_raw(key, value);
        }
    }

    pub(super) fn take(&mut self, key: &str) -> Option<Box<RawValue>> {
        let at = self.0.iter().position(|(k, _)| k == key)?;
        Some(self.0.remove(at).1)
    }

    /// Gives a value another name, whose own value goes.
    pub(super) fn rename(&mut self, from: &str, to: &str) {
        if self.has(from) {
            self.take(to);
        }
        if let Some((key, _)) = self.0.iter_mut().find(|(k, _)| k == from) {
            to.clone_into(key);
        }
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (&String, &mut Box<RawValue>)> {
        self.0.iter_mut().map(|(key, value)| (&*key, value))
    }

    /// Whether both are written with the same text.
    pub(super) fn same_as(&self, other: &Self) -> bool {
        self.0.len() == other.0.len()
            && self
                .0
                .iter()
                .zip(&other.0)
                .all(|(a, b)| a.0 == b.0 && a.1.get() == b.1.get())
    }
}

/// The JSON of something that cannot fail to have one: texts, numbers, lists, and objects whose keys are texts.
pub(super) fn raw(value: &impl Serialize) -> Box<RawValue> {
    serde_json::value::to_raw_value(value).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

impl Serialize for Object {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (key, value) in &self.0 {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Entries)
    }
}

struct Entries;

impl<'de> Visitor<'de> for Entries {
    type Value = Object;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
        let mut entries = Vec::with_capacity(map.size_hint().unwrap_or(0));
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Object(entries))
    }
}
