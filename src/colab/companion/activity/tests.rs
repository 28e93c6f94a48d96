//! Who gets which message.

use std::future::Future as _;

use serde_json::json;

use super::super::wire::Channel;
use super::*;

const OWN: &str = "our-session";

fn routes() -> Arc<Routes> {
    Arc::new(Routes::default())
}

fn origin(id: &str) -> Origin {
    let header = json!({"msg_id": id, "msg_type": "execute_request", "session": "front-end"});
    Origin::new(header.to_string().into())
}

fn expect(routes: &Arc<Routes>, code: &str, id: &str, after: u64) -> Activity {
    routes.begin(Expect::Code(code.into()), origin(id), after)
}

fn message(kind: &str, parent: &str, session: &str, content: Value) -> Message {
    let mut message = Message::new(Channel::IoPub, "kernel", kind, &content);
    let parent = json!({"msg_id": parent, "msg_type": "execute_request", "session": session});
    message.parent_header = parent.to_string().into();
    message
}

fn input(routes: &Routes, n: u64, code: &str, parent: &str, session: &str) -> Destination {
    let content = json!({"code": code, "execution_count": 1});
    let input = message("execute_input", parent, session, content);
    routes.destination(n, input, OWN)
}

fn print(routes: &Routes, n: u64, parent: &str, session: &str) -> Destination {
    let content = json!({"name": "stdout", "text": "x"});
    routes.destination(n, message("stream", parent, session, content), OWN)
}

fn state(routes: &Routes, n: u64, parent: &str, state: &str) -> Destination {
    let content = json!({"execution_state": state});
    routes.destination(n, message("status", parent, "s", content), OWN)
}

fn is_nobodys(destination: &Destination) -> bool {
    matches!(destination, Destination::Nobody)
}

fn is_active(destination: &Destination) -> bool {
    matches!(destination, Destination::Active(..))
}

#[test]
fn a_cell_is_adopted_at_the_first_run_of_its_code_behind_its_submission() {
    let routes = routes();
    let activity = expect(&routes, "x", "1", 10);
    assert!(is_nobodys(&input(&routes, 10, "x", "early", "s")));
    assert!(is_nobodys(&input(&routes, 11, "y", "other", "s")));
    assert!(!activity.is_adopted());
    assert!(is_active(&input(&routes, 12, "x", "a", "s")));
    assert!(activity.is_adopted());
    assert!(is_nobodys(&input(&routes, 13, "x", "b", "s")));
    assert!(is_active(&print(&routes, 14, "a", "s")));
    assert!(is_nobodys(&print(&routes, 15, "b", "s")));
    assert!(matches!(
        state(&routes, 16, "a", "idle"),
        Destination::End(_)
    ));
}

#[test]
fn a_stranger_is_left_out_once_the_service_is_known() {
    let routes = routes();
    routes.confirm_service("service");
    let activity = expect(&routes, "x", "1", 0);
    assert!(is_nobodys(&input(&routes, 1, "x", "a", "stranger")));
    assert!(is_active(&input(&routes, 2, "x", "b", "service")));
    drop(activity);
    routes.forget_service();
    let _activity = expect(&routes, "x", "2", 2);
    assert!(is_active(&input(&routes, 3, "x", "c", "another")));
    routes.confirm_service("another");
    assert!(
        routes.lock().service.is_none(),
        "it proved not to be constant"
    );
}

#[test]
fn code_that_was_given_up_is_not_taken_for_the_next_run_of_it() {
    let routes = routes();
    drop(expect(&routes, "x", "1", 0));
    let activity = expect(&routes, "x", "2", 0);
    assert!(is_nobodys(&input(&routes, 1, "x", "a", "s")));
    assert!(is_nobodys(&print(&routes, 2, "a", "s")));
    assert!(is_active(&input(&routes, 3, "x", "b", "s")));
    drop(activity);
}

#[test]
fn code_that_has_certainly_not_run_does_not_hide_the_next_run_of_it() {
    let routes = routes();
    let mut activity = expect(&routes, "x", "1", 0);
    activity.let_go_unseen();
    drop(activity);
    let _activity = expect(&routes, "x", "2", 0);
    assert!(is_active(&input(&routes, 1, "x", "a", "s")));
}

#[test]
fn short_code_that_was_given_up_does_not_hide_longer_code() {
    let routes = routes();
    drop(expect(&routes, "x", "1", 0));
    let activity = expect(&routes, "x = 5", "2", 0);
    assert!(is_active(&input(&routes, 1, "x = 5", "a", "s")));
    drop(activity);
    // The service runs one call after the other: the older one does not begin any more.
    let _activity = expect(&routes, "x", "3", 1);
    assert!(is_active(&input(&routes, 2, "x", "b", "s")));
}

#[test]
fn rewritten_code_that_contains_ours_is_ours() {
    let routes = routes();
    let _activity = expect(&routes, "print(1)", "1", 0);
    assert!(is_active(&input(
        &routes,
        1,
        "begin()\nprint(1)\nend()",
        "a",
        "s"
    )));
}

#[test]
fn late_output_goes_under_the_request_that_it_belongs_to() {
    let routes = routes();
    let first = expect(&routes, "x", "1", 0);
    input(&routes, 1, "x", "a", "s");
    routes.end(&routes.sender().unwrap());
    drop(first);
    let Destination::Background(to, _) = print(&routes, 2, "a", "s") else {
        panic!("not in the background");
    };
    assert_eq!(to, origin("1"));
    // Under a helper request of ours: that of the latest cell.
    assert!(
        matches!(print(&routes, 3, "helper", OWN), Destination::Background(to, _) if to == origin("1"))
    );
    let _second = expect(&routes, "y", "2", 3);
    input(&routes, 4, "y", "b", "s");
    let Destination::Active(_, arrivals) = print(&routes, 5, "a", "s") else {
        panic!("not with what runs");
    };
    assert!(matches!(&arrivals[..], [Arrival::Message(Some(to), _)] if *to == origin("1")));
    assert!(is_nobodys(&print(&routes, 6, "foreign", "stranger")));
}

#[test]
fn a_cell_that_was_settled_is_silent_until_its_end_and_its_threads_are_not() {
    let routes = routes();
    let activity = expect(&routes, "x", "1", 0);
    input(&routes, 1, "x", "a", "s");
    drop(activity);
    assert!(is_nobodys(&print(&routes, 2, "a", "s")));
    assert!(is_nobodys(&state(&routes, 3, "a", "idle")));
    assert!(matches!(
        print(&routes, 4, "a", "s"),
        Destination::Background(..)
    ));
}

#[test]
fn a_prompt_is_shown_once_however_often_it_is_asked() {
    let routes = routes();
    let _activity = expect(&routes, "x", "1", 0);
    let prompt = |cell: &str| Prompt {
        key: "k".into(),
        cell: Some(cell.into()),
        prompt: "?".into(),
        password: false,
    };
    assert!(routes.prompt(prompt("a")).is_none());
    input(&routes, 1, "x", "a", "s");
    assert!(routes.prompt(prompt("foreign")).is_none());
    assert!(routes.prompt(prompt("a")).is_some());
    assert!(routes.prompt(prompt("a")).is_none());
}

#[test]
fn an_output_widget_captures_what_the_front_end_knows_by_its_own_id() {
    let routes = routes();
    let _activity = expect(&routes, "x", "front-1", 0);
    input(&routes, 1, "x", "a", "s");
    let content =
        |id: &str| json!({"comm_id": "c", "data": {"method": "update", "state": {"msg_id": id}}});
    for (id, expected) in [("a", "front-1"), ("b", "b"), ("", "")] {
        let update = message("comm_msg", "a", "s", content(id));
        let Destination::Active(_, arrivals) = routes.destination(2, update, OWN) else {
            panic!("not passed on");
        };
        let [Arrival::Message(None, update)] = &arrivals[..] else {
            panic!("{arrivals:?}");
        };
        let passed: Value = update.content().unwrap();
        assert_eq!(passed, content(expected));
    }
}

fn entry(
    cell: &str,
    code: &str,
    first: u64,
    last: Option<u64>,
    status: Option<&str>,
) -> TableEntry {
    TableEntry {
        cell: cell.into(),
        session: Some("s".into()),
        code: Some(code.to_uppercase()),
        count: Some(3),
        first,
        last,
        status: status.map(str::to_owned),
        ename: None,
    }
}

#[test]
fn the_table_adopts_what_has_left_the_journal_and_ends_it() {
    let routes = routes();
    let activity = expect(&routes, "x", "1", 5);
    let compare =
        |entry: TableEntry, position| routes.compare(&[entry], position, str::to_uppercase);
    assert!(compare(entry("old", "x", 5, Some(6), None), 20).is_none());
    assert!(compare(entry("later", "x", 21, None, None), 20).is_none());
    assert!(compare(entry("aborted", "x", 7, Some(8), Some("aborted")), 20).is_none());
    assert!(!activity.is_adopted());
    let began = compare(entry("a", "x", 7, None, None), 20);
    assert!(matches!(
        began,
        Some((_, Arrival::Began { count: Some(3), .. }))
    ));
    assert!(routes.is_over(20).is_none());
    assert!(compare(entry("a", "x", 7, Some(22), Some("error")), 20).is_none());
    assert!(routes.is_over(21).is_none());
    let (_, reply) = routes.is_over(22).unwrap();
    assert_eq!(reply.unwrap().status.as_deref(), Some("error"));
}

#[test]
fn code_of_our_own_begins_with_busy_and_nothing_waits_on_a_closed_journal() {
    let routes = routes();
    let mut own = routes.begin(Expect::Own("o".into()), origin("1"), 0);
    let Destination::Active(_, arrivals) = state(&routes, 1, "o", "busy") else {
        panic!("not told");
    };
    assert!(matches!(
        &arrivals[..],
        [Arrival::Began { count: None, .. }]
    ));
    assert!(matches!(
        state(&routes, 2, "o", "idle"),
        Destination::End(_)
    ));
    routes.close();
    drop(arrivals);
    assert!(own.try_recv().is_none());
    let waker = std::task::Waker::noop();
    let mut context = std::task::Context::from_waker(waker);
    let mut later = expect(&routes, "x", "2", 0);
    for activity in [&mut own, &mut later] {
        let received = std::pin::pin!(activity.recv()).poll(&mut context);
        assert!(matches!(received, std::task::Poll::Ready(None)));
    }
}
