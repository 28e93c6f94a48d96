use serde_json::{Value, json};

use super::*;

/// What a kernel with ipywidgets 7.7.1 sent for one widget of each kind, and for some changes.
const RECORDED: &str = include_str!("recorded.json");

fn recorded() -> Vec<(String, Value)> {
    serde_json::from_str(RECORDED).unwrap()
}

fn raw(value: &Value) -> Box<RawValue> {
    serde_json::value::to_raw_value(value).unwrap()
}

fn on() -> Bridge {
    Bridge::new(Mode::On)
}

/// The translation, which must differ from what came.
#[track_caller]
fn to_front_end(bridge: &mut Bridge, msg_type: &str, content: &Value) -> Value {
    let translated = bridge
        .to_front_end(msg_type, &raw(content))
        .expect("the same");
    serde_json::from_str(translated.get()).unwrap()
}

#[track_caller]
fn to_kernel(bridge: &mut Bridge, msg_type: &str, content: &Value) -> Value {
    let translated = bridge.to_kernel(msg_type, &raw(content)).expect("the same");
    serde_json::from_str(translated.get()).unwrap()
}

fn update(id: &str, state: Value) -> Value {
    json!({"comm_id": id, "data": {"method": "update", "state": state, "buffer_paths": []}})
}

/// The recorded opening of the first model of this name, given this id.
fn opening(id: &str, name: &str) -> Value {
    let (_, mut content) = recorded()
        .into_iter()
        .find(|(_, content)| content["data"]["state"]["_model_name"] == name)
        .unwrap();
    content["comm_id"] = id.into();
    content
}

/// A bridge across which a widget has been opened with these values, and the state that the front-end was told.
fn opened(name: &str, values: Value) -> (Bridge, Value) {
    let mut bridge = on();
    let mut content = opening("w", name);
    for (key, value) in values.as_object().unwrap() {
        content["data"]["state"][key] = value.clone();
    }
    let state = to_front_end(&mut bridge, "comm_open", &content)["data"]["state"].clone();
    (bridge, state)
}

fn updated(bridge: &mut Bridge, state: Value) -> Value {
    to_front_end(bridge, "comm_msg", &update("w", state))["data"]["state"].clone()
}

fn written(bridge: &mut Bridge, state: Value) -> Value {
    to_kernel(bridge, "comm_msg", &update("w", state))["data"]["state"].clone()
}

#[test]
fn every_widget_of_7_arrives_as_one_of_8() {
    let mut bridge = on();
    let mut opened = 0;
    for (msg_type, content) in recorded() {
        if msg_type != "comm_open" {
            continue;
        }
        let before = &content["data"]["state"];
        if before["_model_module"] == "@jupyter-widgets/output" {
            assert!(bridge.to_front_end(&msg_type, &raw(&content)).is_none());
            continue;
        }
        let after = to_front_end(&mut bridge, &msg_type, &content);
        assert_eq!(after["comm_id"], content["comm_id"]);
        assert_eq!(after["target_name"], "jupyter.widget");
        let after = &after["data"]["state"];
        let name = &before["_model_name"];
        assert_eq!(&after["_model_name"], name);
        assert_eq!(after["_model_module_version"], "2.0.0", "{name}");
        if before["_view_module"].is_string() {
            assert_eq!(after["_view_module_version"], "2.0.0", "{name}");
        }
        for gone in [
            "description_tooltip",
            "_titles",
            "border",
            "overflow_x",
            "overflow_y",
            "_playing",
            "_repeat",
            "_counter",
            "metadata",
            "data",
        ] {
            assert!(after.get(gone).is_none(), "{name} {gone}");
        }
        opened += 1;
    }
    assert!(opened > 50);
}

#[test]
fn what_is_not_translated_keeps_its_bytes() {
    let mut bridge = on();
    let open = r#"{"data": {"state": {"_model_module": "@jupyter-widgets/controls", "_model_module_version": "1.5.0", "value": 123456789012345678901234567890, "step":  1.10e0, "é": "\u00e9\ud83d"}, "buffer_paths": []}, "comm_id": "w", "target_name": "jupyter.widget", "target_module": null}"#;
    let raw: Box<RawValue> = serde_json::from_str(open).unwrap();
    let translated = bridge.to_front_end("comm_open", &raw).unwrap();
    for kept in [
        r#""value":123456789012345678901234567890"#,
        "1.10e0",
        r#""\u00e9\ud83d""#,
        r#""target_module":null"#,
    ] {
        assert!(translated.get().contains(kept), "{kept} {translated}");
    }
    // An update without anything of 7 is not even written anew.
    let update = update("w", json!({"value": 7}));
    assert!(
        bridge
            .to_front_end("comm_msg", &super::object::raw(&update))
            .is_none()
    );
    assert!(
        bridge
            .to_kernel("comm_msg", &super::object::raw(&update))
            .is_none()
    );
}

#[test]
fn widgets_of_8_and_other_targets_pass_untouched() {
    let mut bridge = on();
    let mut eight = opening("w", "AccordionModel");
    eight["data"]["state"]["_model_module_version"] = "2.0.0".into();
    eight["data"]["state"]["_view_module_version"] = "2.0.0".into();
    let mut foreign = opening("f", "LayoutModel");
    foreign["target_name"] = "mine".into();
    for content in [&eight, &foreign] {
        assert!(bridge.to_front_end("comm_open", &raw(content)).is_none());
    }
    for id in ["w", "f", "never-opened"] {
        let update = raw(&update(
            id,
            json!({"_titles": {"0": "a"}, "border": "1px", "titles": ["b"], "tooltip": "c"}),
        ));
        assert!(bridge.to_front_end("comm_msg", &update).is_none());
        assert!(bridge.to_kernel("comm_msg", &update).is_none());
    }
    let display =
        raw(&json!({"data": {"application/vnd.jupyter.widget-view+json": {"model_id": "w"}}}));
    assert!(bridge.to_front_end("display_data", &display).is_none());
}

#[test]
fn what_is_no_message_of_a_widget_passes() {
    let mut bridge = on();
    for content in [
        "{}",
        "[]",
        "null",
        r#"{"comm_id":1}"#,
        r#"{"comm_id":"a","target_name":"jupyter.widget"}"#,
        r#"{"comm_id":"a","target_name":"jupyter.widget","data":[]}"#,
        r#"{"comm_id":"a","target_name":"jupyter.widget","data":{"state":7}}"#,
    ] {
        let content: Box<RawValue> = serde_json::from_str(content).unwrap();
        for msg_type in ["comm_open", "comm_msg", "comm_close", "stream"] {
            assert!(bridge.to_front_end(msg_type, &content).is_none());
            assert!(bridge.to_kernel(msg_type, &content).is_none());
        }
    }
}

#[test]
fn models_of_other_modules_keep_their_attributes() {
    let values = json!({"_model_module": "theirs", "_model_module_version": "1.5.0", "_titles": {"0": "a"},
        "description_tooltip": null});
    let (mut bridge, state) = opened("AccordionModel", values);
    assert_eq!(state["_model_module_version"], "1.5.0");
    assert_eq!(state["_view_module_version"], "2.0.0");
    assert_eq!(state["_titles"], json!({"0": "a"}));
    assert!(state.get("tooltip").is_none() && state.get("description_tooltip").is_some());
    assert!(
        bridge
            .to_kernel("comm_msg", &raw(&update("w", json!({"titles": ["x"]}))))
            .is_none()
    );
}

#[test]
fn tooltips_and_descriptions_are_those_of_7() {
    let (mut bridge, state) = opened(
        "IntSliderModel",
        json!({"description": "x", "description_tooltip": "why"}),
    );
    assert_eq!(state["tooltip"], "why");
    assert_eq!(state["description_allow_html"], true);
    assert_eq!(
        updated(&mut bridge, json!({"description_tooltip": "new"})),
        json!({"tooltip": "new"})
    );
    // Null means the description, whatever it is by then.
    assert_eq!(
        updated(&mut bridge, json!({"description_tooltip": null})),
        json!({"tooltip": "x"})
    );
    assert_eq!(
        updated(&mut bridge, json!({"description": "z"})),
        json!({"description": "z", "tooltip": "z"})
    );
    assert_eq!(
        written(&mut bridge, json!({"tooltip": "z"})),
        json!({"description_tooltip": null})
    );
    assert_eq!(
        written(&mut bridge, json!({"tooltip": "t", "value": 1})),
        json!({"description_tooltip": "t", "value": 1})
    );
    // With a tooltip of its own, a new description changes nothing else.
    let described = raw(&update("w", json!({"description": "y"})));
    assert!(bridge.to_front_end("comm_msg", &described).is_none());
}

#[test]
fn buttons_keep_the_tooltip_they_had() {
    for name in ["ButtonModel", "ToggleButtonModel"] {
        let (mut bridge, state) = opened(name, json!({"tooltip": "tip"}));
        assert_eq!(state["tooltip"], "tip");
        assert!(state.get("description_allow_html").is_none());
        assert_eq!(
            written(&mut bridge, json!({"tooltip": null})),
            json!({"tooltip": ""})
        );
    }
}

#[test]
fn titles_are_a_list_there_and_a_dict_here() {
    for name in ["TabModel", "AccordionModel"] {
        let (mut bridge, state) = opened(name, json!({}));
        assert_eq!(state["titles"], json!([]));
        let state = updated(
            &mut bridge,
            json!({"_titles": {"10": "k", "1": "b", "-1": "x", "99999999999": "y"}}),
        );
        assert_eq!(
            state["titles"],
            json!(["", "b", "", "", "", "", "", "", "", "", "k"])
        );
        assert_eq!(
            written(&mut bridge, json!({"titles": ["a", "b"]})),
            json!({"_titles": {"0": "a", "1": "b"}})
        );
        let selected = raw(&update("w", json!({"selected_index": null})));
        assert!(bridge.to_kernel("comm_msg", &selected).is_none());
    }
}

#[test]
fn a_border_has_four_sides() {
    let (mut bridge, state) = opened("LayoutModel", json!({"border": "1px solid red"}));
    for side in ["border_top", "border_right", "border_bottom", "border_left"] {
        assert_eq!(state[side], "1px solid red");
    }
    let none = json!({"border_top": null, "border_right": null, "border_bottom": null, "border_left": null});
    assert_eq!(updated(&mut bridge, json!({"border": null})), none);
    assert_eq!(written(&mut bridge, none), json!({"border": null}));
    assert_eq!(
        written(&mut bridge, json!({"border_top": "1px", "width": "1em"})),
        json!({"width": "1em"})
    );
}

#[test]
fn overflow_of_one_direction_is_in_the_shorthand() {
    let (mut bridge, state) = opened("LayoutModel", json!({"overflow_x": "auto"}));
    assert_eq!(state["overflow"], "auto visible");
    assert_eq!(
        updated(&mut bridge, json!({"overflow_y": "hidden"})),
        json!({"overflow": "auto hidden"})
    );
    assert_eq!(
        updated(&mut bridge, json!({"overflow_x": null, "overflow_y": null})),
        json!({"overflow": null})
    );
    let both = raw(&update("w", json!({"overflow": "scroll hidden"})));
    assert!(bridge.to_front_end("comm_msg", &both).is_none());
    assert_eq!(
        updated(&mut bridge, json!({"overflow_x": "auto"})),
        json!({"overflow": "auto hidden"})
    );
}

#[test]
fn play_tells_whether_it_plays_both_ways() {
    let (mut bridge, state) = opened("PlayModel", json!({"_repeat": true}));
    assert_eq!(
        (&state["playing"], &state["repeat"]),
        (&json!(false), &json!(true))
    );
    assert_eq!(
        updated(&mut bridge, json!({"_playing": true})),
        json!({"playing": true})
    );
    assert_eq!(
        written(
            &mut bridge,
            json!({"playing": false, "repeat": false, "value": 3})
        ),
        json!({"_playing": false, "_repeat": false, "value": 3})
    );
}

#[test]
fn an_uploaded_file_reaches_the_kernel_as_three_lists() {
    let (mut bridge, state) = opened("FileUploadModel", json!({}));
    assert_eq!(state["value"], json!([]));
    let file =
        |name: &str| json!({"name": name, "type": "text/plain", "size": 3, "last_modified": 1600});
    let content = json!({"comm_id": "w", "data": {"method": "update",
        "state": {"value": [file("a"), file("b")], "error": ""},
        "buffer_paths": [["value", 0, "content"], ["value", 1, "content"]]}});
    let metadata =
        |name: &str| json!({"name": name, "type": "text/plain", "size": 3, "lastModified": 1600});
    let sent = to_kernel(&mut bridge, "comm_msg", &content);
    assert_eq!(
        sent["data"]["state"],
        json!({"error": "", "_counter": 2, "metadata": [metadata("a"), metadata("b")],
        "data": [null, null]})
    );
    assert_eq!(
        sent["data"]["buffer_paths"],
        json!([["data", 0], ["data", 1]])
    );
    // The count goes on, because only its change makes the kernel look.
    assert_eq!(
        to_kernel(&mut bridge, "comm_msg", &content)["data"]["state"]["_counter"],
        4
    );
    // An echo has no contents, and the front-end has the value already.
    let mut echo = update(
        "w",
        json!({"_counter": 4, "metadata": [metadata("a")], "error": ""}),
    );
    echo["data"]["method"] = "echo_update".into();
    assert_eq!(
        to_front_end(&mut bridge, "comm_msg", &echo)["data"]["state"],
        json!({"error": ""})
    );
    // Emptied from Python.
    assert_eq!(
        updated(&mut bridge, json!({"_counter": 0})),
        json!({"value": []})
    );
    assert_eq!(
        to_kernel(&mut bridge, "comm_msg", &content)["data"]["state"]["_counter"],
        2
    );

    let mut full = update(
        "w",
        json!({"_counter": 1, "metadata": [metadata("a")], "data": [null]}),
    );
    full["data"]["buffer_paths"] = json!([["data", 0]]);
    let told = to_front_end(&mut bridge, "comm_msg", &full);
    let mut with_hole = file("a");
    with_hole["content"] = Value::Null;
    assert_eq!(told["data"]["state"], json!({"value": [with_hole]}));
    assert_eq!(
        told["data"]["buffer_paths"],
        json!([["value", 0, "content"]])
    );
}

#[test]
fn custom_messages_and_requests_pass_untouched() {
    let (mut bridge, _) = opened("TabModel", json!({}));
    for data in [
        json!({"method": "custom", "content": {"titles": ["a"]}}),
        json!({"method": "request_state"}),
        json!({"method": "custom", "state": {"titles": ["a"], "_titles": {}}}),
    ] {
        let content = raw(&json!({"comm_id": "w", "data": data}));
        assert!(bridge.to_kernel("comm_msg", &content).is_none());
        assert!(bridge.to_front_end("comm_msg", &content).is_none());
    }
}

#[test]
fn a_reloaded_page_is_told_all_states_in_its_own_terms() {
    let mut bridge = on();
    let control = json!({"comm_id": "c", "target_name": "jupyter.widget.control", "data": {}});
    assert!(bridge.to_kernel("comm_open", &raw(&control)).is_none());
    let entry = |name: &str| {
        let state = opening("", name)["data"]["state"].clone();
        json!({"model_name": name, "model_module": state["_model_module"],
            "model_module_version": state["_model_module_version"], "state": state})
    };
    let mut upload = entry("FileUploadModel");
    upload["state"]["data"] = json!([null]);
    let mut image = entry("ImageModel");
    image["state"].as_object_mut().unwrap().remove("value");
    let told = to_front_end(
        &mut bridge,
        "comm_msg",
        &json!({"comm_id": "c", "data": {
            "method": "update_states",
            "states": {"u": upload, "o": entry("OutputModel"), "i": image},
            "buffer_paths": [["u", "state", "data", 0], ["i", "state", "value"]],
        }}),
    );
    let states = &told["data"]["states"];
    assert_eq!(states["u"]["model_module_version"], "2.0.0");
    assert_eq!(states["u"]["state"]["_view_module_version"], "2.0.0");
    assert_eq!(states["u"]["state"]["value"][0]["name"], "");
    assert_eq!(states["o"], entry("OutputModel"));
    assert_eq!(
        told["data"]["buffer_paths"],
        json!([
            ["u", "state", "value", 0, "content"],
            ["i", "state", "value"]
        ])
    );
    // From here on the models are known.
    let value = json!({"value": [{"name": "a"}]});
    assert_eq!(
        to_kernel(&mut bridge, "comm_msg", &update("u", value))["data"]["state"]["_counter"],
        1
    );
}

#[test]
fn a_model_that_the_front_end_makes_is_of_the_kernels_version() {
    let made = json!({"comm_id": "n", "target_name": "jupyter.widget", "data": {"state": {
        "_model_module": "@jupyter-widgets/controls", "_model_module_version": "2.0.0", "_model_name": "TabModel",
        "_view_module": "@jupyter-widgets/controls", "_view_module_version": "2.0.0", "titles": ["a"]}}});
    let mut bridge = on();
    assert!(
        bridge.to_kernel("comm_open", &raw(&made)).is_none(),
        "nothing is known of the kernel"
    );
    let (mut bridge, _) = opened("IntSliderModel", json!({}));
    let sent = to_kernel(&mut bridge, "comm_open", &made);
    assert_eq!(sent["data"]["state"]["_model_module_version"], "1.5.0");
    assert_eq!(sent["data"]["state"]["_view_module_version"], "1.5.0");
    assert_eq!(sent["data"]["state"]["_titles"], json!({"0": "a"}));
    let told = to_front_end(
        &mut bridge,
        "comm_msg",
        &update("n", json!({"_titles": {"0": "b"}})),
    );
    assert_eq!(told["data"]["state"], json!({"titles": ["b"]}));
}

#[test]
fn closed_and_lost_models_are_forgotten() {
    let titles = raw(&update("w", json!({"_titles": {"0": "a"}})));
    let close = raw(&json!({"comm_id": "w", "data": {}}));
    for end in 0..3 {
        let (mut bridge, _) = opened("TabModel", json!({}));
        match end {
            0 => assert!(bridge.to_front_end("comm_close", &close).is_none()),
            1 => assert!(bridge.to_kernel("comm_close", &close).is_none()),
            _ => bridge.forget_all(),
        }
        assert!(bridge.to_front_end("comm_msg", &titles).is_none());
        assert!(bridge.models.is_empty());
    }
}

#[test]
fn only_vs_code_makes_auto_mean_off() {
    let open = raw(&opening("w", "TabModel"));
    for (mode, vs_code, works) in [
        (Mode::Auto, false, true),
        (Mode::Auto, true, false),
        (Mode::On, true, true),
        (Mode::Off, false, false),
    ] {
        let mut bridge = Bridge::new(mode);
        if vs_code {
            bridge.is_vs_code();
        }
        assert_eq!(
            bridge.to_front_end("comm_open", &open).is_some(),
            works,
            "{mode:?}"
        );
    }
    for (name, mode) in [
        ("auto", Ok(Mode::Auto)),
        ("off", Ok(Mode::Off)),
        ("on", Ok(Mode::On)),
    ] {
        assert_eq!(name.parse(), mode);
    }
    assert_eq!(
        "yes".parse::<Mode>().unwrap_err().to_string(),
        r#""yes" is none of auto, off, on"#
    );
}
