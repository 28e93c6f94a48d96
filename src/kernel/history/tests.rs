use std::fs;
use std::time::Duration;

use super::*;

fn ask(history: &mut History, content: Value) -> Vec<Value> {
    let reply = history.reply(&HistoryRequest::from_content(&content));
    assert_eq!(reply["status"], "ok");
    reply["history"].as_array().unwrap().clone()
}

fn tail(history: &mut History, n: i64) -> Vec<Value> {
    ask(history, json!({"hist_access_type": "tail", "n": n}))
}

fn filled() -> History {
    let mut history = History::new(5);
    for (line, code) in ["a = 1", "b = 2", "print(a)", "a = 1", "a"]
        .into_iter()
        .enumerate()
    {
        history.push(i64::try_from(line).unwrap() + 1, code);
    }
    history.set_output(5, "1");
    history
}

#[test]
fn a_session_number_is_never_below_one() {
    assert_eq!(History::new(0).session(), 1);
    assert_eq!(History::new(-3).session(), 1);
}

#[test]
fn tail_gives_the_last_inputs_in_order() {
    let mut history = filled();
    assert_eq!(
        tail(&mut history, 2),
        [json!([5, 4, "a = 1"]), json!([5, 5, "a"])]
    );
    assert_eq!(tail(&mut history, 100).len(), 5);
    assert_eq!(tail(&mut history, 0).len(), 0);
}

#[test]
fn outputs_come_as_pairs() {
    let rows = ask(
        &mut filled(),
        json!({"hist_access_type": "tail", "n": 2, "output": true, "raw": true}),
    );
    assert_eq!(
        rows,
        [json!([5, 4, ["a = 1", null]]), json!([5, 5, ["a", "1"]])]
    );
}

#[test]
fn range_takes_the_number_of_the_session_or_counts_back_from_it() {
    let mut history = filled();
    for session in [0, 5] {
        let content =
            json!({"hist_access_type": "range", "session": session, "start": 2, "stop": 3});
        assert_eq!(ask(&mut history, content), [json!([5, 2, "b = 2"])]);
    }
    for session in [-1, 4, 6] {
        let content = json!({"hist_access_type": "range", "session": session, "start": 1});
        assert_eq!(ask(&mut history, content).len(), 0);
    }
}

#[test]
fn range_is_open_at_the_end_and_counts_back_when_negative() {
    let mut history = filled();
    let mut lines = |start: i64, stop: Value| {
        let content =
            json!({"hist_access_type": "range", "session": 0, "start": start, "stop": stop});
        ask(&mut history, content)
            .iter()
            .map(|row| row[1].as_i64().unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(lines(4, Value::Null), [4, 5]);
    assert_eq!(lines(0, Value::Null), [1, 2, 3, 4, 5]);
    assert_eq!(lines(-2, Value::Null), [4, 5]);
    assert_eq!(lines(1, json!(-3)), [1, 2]);
    assert_eq!(lines(i64::MIN, json!(i64::MAX)), [1, 2, 3, 4, 5]);
}

#[test]
fn search_matches_globs_once_each_if_asked_and_the_last_ones() {
    let mut history = filled();
    let mut lines = |content: Value| {
        ask(&mut history, content)
            .iter()
            .map(|row| row[1].as_i64().unwrap())
            .collect::<Vec<_>>()
    };
    let search = |pattern: &str| json!({"hist_access_type": "search", "pattern": pattern});
    assert_eq!(lines(search("a*")), [1, 4, 5]);
    assert_eq!(lines(search("? = ?")), [1, 2, 4]);
    assert_eq!(lines(search("*(a)")), [3]);
    assert_eq!(lines(search("= 1")), Vec::<i64>::new());
    assert_eq!(
        lines(json!({"hist_access_type": "search", "pattern": "a*", "unique": true})),
        [4, 5]
    );
    assert_eq!(
        lines(json!({"hist_access_type": "search", "pattern": "*", "n": 3})),
        [3, 4, 5]
    );
    assert_eq!(
        lines(json!({"hist_access_type": "search", "pattern": "a = 1", "n": 1, "unique": true})),
        [4]
    );
}

#[test]
fn globs_follow_sqlite() {
    for (pattern, text, matches) in [
        ("", "", true),
        ("", "a", false),
        ("*", "", true),
        ("**", "x", true),
        ("a*b*c", "a--b--b--c", true),
        ("a*b*c", "a--b--b--", false),
        ("?", "é", true),
        ("[abc]x", "bx", true),
        ("[^abc]x", "bx", false),
        ("[a-c]x", "bx", true),
        ("[]]x", "]x", true),
        ("[abc", "a", false),
        ("*[0-9]", "x[7] = 5", true),
        ("a*", "A", false),
        ("line*\n*", "line 1\nline 2", true),
    ] {
        let chars: Vec<char> = pattern.chars().collect();
        assert_eq!(glob_matches(&chars, text), matches, "{pattern:?} {text:?}");
    }
}

#[test]
fn odd_requests_are_answered() {
    let mut history = filled();
    for content in [
        json!({}),
        json!(null),
        json!([]),
        json!({"hist_access_type": "nonsense", "n": "three"}),
        json!({"hist_access_type": "tail", "n": null}),
        json!({"hist_access_type": "tail", "n": -1}),
    ] {
        assert_eq!(ask(&mut history, content).len(), 5);
    }
}

#[test]
fn memory_is_bounded() {
    let mut history = History::new(1);
    for line in 1..=i64::try_from(MAX_ENTRIES).unwrap() + 5 {
        history.push(line, "x");
    }
    let rows = tail(&mut history, i64::MAX);
    assert_eq!(rows.len(), MAX_ENTRIES);
    assert_eq!(rows[0][1], 6);

    history.push(20_000, "y".repeat(MAX_BYTES + 1));
    assert_eq!(tail(&mut history, i64::MAX).len(), 1);
}

async fn open(directory: &Path) -> History {
    let mut history = History::open(directory);
    loaded(&mut history).await;
    history
}

/// Waits for the file without the limit that a request has.
async fn loaded(history: &mut History) {
    tokio::time::timeout(Duration::from_secs(20), async {
        while history.loading.is_some() {
            history.ready().await;
        }
    })
    .await
    .expect("the file was not read");
}

/// Waits for the file without the limit that a shutdown has.
async fn written(history: &History) {
    let writer = history.writer.as_ref().unwrap();
    tokio::time::timeout(Duration::from_secs(20), writer.flush())
        .await
        .expect("the file was not written");
}

#[tokio::test]
async fn a_later_process_knows_the_inputs_of_an_earlier_one() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    let mut first = open(&state).await;
    assert_eq!(first.session(), 1);
    first.push(1, "print('é\n')");
    first.set_output(1, "a secret");
    written(&first).await;

    let mut second = open(&state).await;
    assert_eq!(second.session(), 2);
    second.push(1, "two");
    assert_eq!(
        tail(&mut second, 10),
        [json!([1, 1, "print('é\n')"]), json!([2, 1, "two"])]
    );
    let previous = json!({"hist_access_type": "range", "session": -1, "start": 1});
    assert_eq!(ask(&mut second, previous).len(), 1);
    let file = fs::read_to_string(state.join("history.jsonl")).unwrap();
    assert!(!file.contains("a secret"));
}

#[cfg(unix)]
#[tokio::test]
async fn the_file_is_for_the_user_alone() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    open(&state).await;
    let mode = |name: &str| fs::metadata(state.join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!(
        (mode(""), mode("history.jsonl"), mode("history.lock")),
        (0o700, 0o600, 0o600)
    );
}

#[tokio::test]
async fn inputs_before_the_file_is_read_keep_their_place() {
    let directory = tempfile::tempdir().unwrap();
    let mut first = open(directory.path()).await;
    first.push(1, "earlier");
    written(&first).await;

    let mut history = History::open(directory.path());
    history.push(1, "at once");
    loaded(&mut history).await;
    written(&history).await;
    assert_eq!(
        tail(&mut history, 10),
        [json!([1, 1, "earlier"]), json!([2, 1, "at once"])]
    );
    let mut next = open(directory.path()).await;
    assert_eq!(tail(&mut next, 1), [json!([2, 1, "at once"])]);
}

#[tokio::test]
async fn many_kernels_share_the_file() {
    const KERNELS: usize = 8;
    const INPUTS: i64 = 50;
    let directory = tempfile::tempdir().unwrap();
    let mut kernels = tokio::task::JoinSet::new();
    for _ in 0..KERNELS {
        let path = directory.path().to_owned();
        kernels.spawn(async move {
            let mut history = open(&path).await;
            for line in 1..=INPUTS {
                history.push(line, format!("input {line}"));
            }
            written(&history).await;
            history.session()
        });
    }
    let mut sessions = kernels.join_all().await;
    sessions.sort_unstable();
    assert_eq!(sessions, (1..=8).collect::<Vec<_>>());

    let mut later = open(directory.path()).await;
    assert_eq!(later.session(), 9);
    for session in sessions {
        let content = json!({"hist_access_type": "range", "session": session, "start": 1});
        let lines: Vec<i64> = ask(&mut later, content)
            .iter()
            .map(|row| row[1].as_i64().unwrap())
            .collect();
        assert_eq!(lines, (1..=INPUTS).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn damaged_lines_are_passed_over() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(
        directory.path().join("history.jsonl"),
        b"not json\n{\"session\": 3, \"line\": 1, \"input\": \"kept\"}\n\xff\xfe\n[]\n{\"session\": 4, \"li",
    )
    .unwrap();
    let mut history = open(directory.path()).await;
    assert_eq!(history.session(), 4);
    history.push(1, "new");
    written(&history).await;
    let mut next = open(directory.path()).await;
    assert_eq!(
        tail(&mut next, 10),
        [json!([3, 1, "kept"]), json!([4, 1, "new"])]
    );
}

#[tokio::test]
async fn a_large_file_is_cut_to_its_last_entries() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("history.jsonl");
    let mut text = String::new();
    let mut line = 0;
    while text.len() <= 2 * MAX_BYTES {
        line += 1;
        let row = json!({"session": 1, "line": line, "input": "x".repeat(4_000)});
        text.push_str(&format!("{row}\n"));
    }
    fs::write(&path, text).unwrap();
    let mut history = open(directory.path()).await;
    assert_eq!(history.session(), 2);
    assert!(fs::metadata(&path).unwrap().len() < MAX_BYTES as u64);
    assert_eq!(tail(&mut history, 1)[0][1], line);
    let mut next = open(directory.path()).await;
    assert_eq!(next.session(), 3);
    assert_eq!(tail(&mut next, 1)[0][1], line);
}

#[tokio::test]
async fn without_a_writable_directory_it_lives_in_memory() {
    let directory = tempfile::tempdir().unwrap();
    let occupied = directory.path().join("a file");
    fs::write(&occupied, "").unwrap();
    let mut history = open(&occupied.join("state")).await;
    history.push(1, "x");
    history.flush().await;
    assert_eq!(tail(&mut history, 10), [json!([1, 1, "x"])]);
}
