//! Signing: an HMAC over the four JSON frames of a message, exactly as they are on the wire.
//!
//! * Signatures are compared in constant time, and over the bytes received: nothing is parsed before it is verified.
//! * A signature that has been accepted once is refused the second time (within the last 65,536 messages), so that a
//!   recorded request cannot be sent again.
//! * An empty key means that messages are not signed and not verified, as the messaging spec has it.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::sync::{Mutex, PoisonError};

use hmac::{Hmac, KeyInit, Mac};
use md5::Md5;
use sha1::Sha1;
use sha2::{Sha224, Sha256, Sha384, Sha512};

use super::connection::SecretKey;

/// How many accepted signatures are remembered (jupyter_client's digest history has the same size).
const REMEMBERED: usize = 1 << 16;

/// How messages are signed (`signature_scheme` of the connection file).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Scheme {
    HmacMd5,
    HmacSha1,
    HmacSha224,
    HmacSha256,
    HmacSha384,
    HmacSha512,
}

impl Scheme {
    /// The scheme of this name, if it is one that the kernel speaks.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "hmac-md5" => Self::HmacMd5,
            "hmac-sha1" => Self::HmacSha1,
            "hmac-sha224" => Self::HmacSha224,
            "hmac-sha256" => Self::HmacSha256,
            "hmac-sha384" => Self::HmacSha384,
            "hmac-sha512" => Self::HmacSha512,
            _ => return None,
        })
    }

    /// All names, for error messages.
    pub(super) const NAMES: &'static str =
        "hmac-md5, hmac-sha1, hmac-sha224, hmac-sha256, hmac-sha384, hmac-sha512";
}

/// Why a signature is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refused {
    #[error("it is not signed")]
    Unsigned,
    #[error("its signature is wrong")]
    Wrong,
    #[error("its signature has been used before")]
    Replayed,
}

/// Signs what goes out and verifies what comes in.
pub(super) struct Signer {
    mac: Option<KeyedMac>,
    seen: Mutex<Seen>,
}

impl Signer {
    pub(super) fn new(scheme: Scheme, key: &SecretKey) -> Self {
        let mac = (!key.as_bytes().is_empty()).then(|| KeyedMac::new(scheme, key.as_bytes()));
        Self {
            mac,
            seen: Mutex::default(),
        }
    }

    /// The signature frame for these frames: lower-case hex, or empty without a key.
    pub(super) fn sign(&self, frames: [&[u8]; 4]) -> Vec<u8> {
        self.mac
            .as_ref()
            .map_or_else(Vec::new, |mac| to_hex(&mac.digest(frames)))
    }

    /// Accepts a message, once.
    pub(super) fn verify(&self, signature: &[u8], frames: [&[u8]; 4]) -> Result<(), Refused> {
        let Some(mac) = &self.mac else {
            return Ok(());
        };
        if signature.is_empty() {
            return Err(Refused::Unsigned);
        }
        let digest = from_hex(signature).ok_or(Refused::Wrong)?;
        if !mac.matches(frames, &digest) {
            return Err(Refused::Wrong);
        }
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if !seen.insert(&digest) {
            return Err(Refused::Replayed);
        }
        Ok(())
    }
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.mac.is_some() { "keyed" } else { "off" };
        write!(f, "Signer({state})")
    }
}

/// The latest accepted signatures, oldest first. Sixteen bytes of a digest tell two messages apart.
#[derive(Default)]
struct Seen {
    order: VecDeque<[u8; 16]>,
    known: HashSet<[u8; 16]>,
}

impl Seen {
    fn insert(&mut self, digest: &[u8]) -> bool {
        let mut short = [0; 16];
        let taken = digest.len().min(short.len());
        short[..taken].copy_from_slice(&digest[..taken]);
        if !self.known.insert(short) {
            return false;
        }
        self.order.push_back(short);
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
        true
    }
}

/// An HMAC that has taken its key; cloned for each message.
enum KeyedMac {
    Md5(Hmac<Md5>),
    Sha1(Hmac<Sha1>),
    Sha224(Hmac<Sha224>),
    Sha256(Hmac<Sha256>),
    Sha384(Hmac<Sha384>),
    Sha512(Hmac<Sha512>),
}

macro_rules! with_mac {
    ($self:expr, $mac:ident => $body:expr) => {
        match $self {
            KeyedMac::Md5($mac) => $body,
            KeyedMac::Sha1($mac) => $body,
            KeyedMac::Sha224($mac) => $body,
            KeyedMac::Sha256($mac) => $body,
            KeyedMac::Sha384($mac) => $body,
            KeyedMac::Sha512($mac) => $body,
        }
    };
}

impl KeyedMac {
    fn new(scheme: Scheme, key: &[u8]) -> Self {
        match scheme {
            Scheme::HmacMd5 => Self::Md5(keyed(key)),
            Scheme::HmacSha1 => Self::Sha1(keyed(key)),
            Scheme::HmacSha224 => Self::Sha224(keyed(key)),
            Scheme::HmacSha256 => Self::Sha256(keyed(key)),
            Scheme::HmacSha384 => Self::Sha384(keyed(key)),
            Scheme::HmacSha512 => Self::Sha512(keyed(key)),
        }
    }

    fn digest(&self, frames: [&[u8]; 4]) -> Vec<u8> {
        with_mac!(self, mac => fed(mac, frames).finalize().into_bytes().to_vec())
    }

    fn matches(&self, frames: [&[u8]; 4], digest: &[u8]) -> bool {
        with_mac!(self, mac => fed(mac, frames).verify_slice(digest).is_ok())
    }
}

// HMAC takes keys of every length; the error type exists for MACs that do not.
#[allow(clippy::expect_used)]
fn keyed<M: KeyInit>(key: &[u8]) -> M {
    M::new_from_slice(key).expect("HMAC takes keys of every length")
}

fn fed<M: Mac + Clone>(mac: &M, frames: [&[u8]; 4]) -> M {
    let mut mac = mac.clone();
    for frame in frames {
        mac.update(frame);
    }
    mac
}

fn to_hex(bytes: &[u8]) -> Vec<u8> {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .map(|nibble| DIGITS[usize::from(nibble)])
        .collect()
}

fn from_hex(text: &[u8]) -> Option<Vec<u8>> {
    let nibble = |digit: u8| char::from(digit).to_digit(16);
    if !text.len().is_multiple_of(2) {
        return None;
    }
    text.chunks_exact(2)
        .map(|pair| {
            let value = nibble(pair[0])? * 16 + nibble(pair[1])?;
            u8::try_from(value).ok()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAMES: [&[u8]; 4] = [b"{\"a\":1}", b"{}", b"{}", b"{\"code\":\"1\"}"];

    fn signer(scheme: Scheme) -> Signer {
        Signer::new(scheme, &SecretKey::new("a-key"))
    }

    #[test]
    fn signatures_equal_those_of_pythons_hmac() {
        let expected = [
            (Scheme::HmacMd5, "426204525da3b897a45ed12e94be3d42"),
            (Scheme::HmacSha1, "2cf290d8497aeec6a8ff40f79a4ce417137690d7"),
            (
                Scheme::HmacSha224,
                "50de0ec99db162d09e534b2bb058dc4547fb4ec918955d75f6ae9980",
            ),
            (
                Scheme::HmacSha256,
                "36ea56a03656209f708e3c9bed9a587f261ea7d91b900e2ccb059d4b97c8f950",
            ),
            (
                Scheme::HmacSha384,
                "d1da8d5f5424b51aae6696b5b1d79c3320b56c60c117d890e5ab2682dd28d4afdfb97cb7d88cbe5a02506185925c7907",
            ),
            (
                Scheme::HmacSha512,
                "555c2fad88f033aa94bf713b096fba27ff265d78c7cfeccfa8aa94189c7ef702916d5436e7d137ead2809b02251092e90de6fb3f2f75d6e5924ecb3b5972b504",
            ),
        ];
        for (scheme, hex) in expected {
            let signature = signer(scheme).sign(FRAMES);
            assert_eq!(String::from_utf8(signature).unwrap(), hex, "{scheme:?}");
        }
    }

    #[test]
    fn a_signature_is_accepted_once() {
        let signer = signer(Scheme::HmacSha256);
        let signature = signer.sign(FRAMES);
        assert_eq!(signer.verify(&signature, FRAMES), Ok(()));
        assert_eq!(signer.verify(&signature, FRAMES), Err(Refused::Replayed));
    }

    #[test]
    fn a_replay_in_upper_case_is_still_a_replay() {
        let signer = signer(Scheme::HmacSha256);
        let signature = signer.sign(FRAMES);
        assert_eq!(signer.verify(&signature, FRAMES), Ok(()));
        let upper = signature.to_ascii_uppercase();
        assert_eq!(signer.verify(&upper, FRAMES), Err(Refused::Replayed));
    }

    #[test]
    fn a_wrong_missing_or_short_signature_is_refused() {
        let signer = signer(Scheme::HmacSha256);
        let signature = signer.sign(FRAMES);
        assert_eq!(signer.verify(b"", FRAMES), Err(Refused::Unsigned));
        assert_eq!(signer.verify(b"zz", FRAMES), Err(Refused::Wrong));
        assert_eq!(signer.verify(&signature[..32], FRAMES), Err(Refused::Wrong));
        let other: [&[u8]; 4] = [b"{}", b"{}", b"{}", b"{}"];
        assert_eq!(signer.verify(&signature, other), Err(Refused::Wrong));
        assert_eq!(signer.verify(&signature, FRAMES), Ok(()));
    }

    #[test]
    fn an_empty_key_signs_nothing_and_accepts_everything() {
        let signer = Signer::new(Scheme::HmacSha256, &SecretKey::new(""));
        assert!(signer.sign(FRAMES).is_empty());
        assert_eq!(signer.verify(b"whatever", FRAMES), Ok(()));
        assert_eq!(signer.verify(b"whatever", FRAMES), Ok(()));
    }

    #[test]
    fn the_memory_of_signatures_is_bounded() {
        let mut seen = Seen::default();
        for number in 0..REMEMBERED + 10 {
            assert!(seen.insert(&number.to_be_bytes()));
        }
        assert_eq!(seen.order.len(), REMEMBERED);
        assert_eq!(seen.known.len(), REMEMBERED);
        assert!(!seen.insert(&(REMEMBERED + 9).to_be_bytes()));
    }
}
