//! Texts of many lengths in rows of one.

use serde_json::Value;
use shardax::prelude::*;
use shardax_train::data::*;

use super::fails;

/// Texts of 0 to 12 tokens, each number once.
fn texts() -> SourceStream<(usize, fn(usize) -> Result<Example>)> {
    fn text(i: usize) -> Result<Example> {
        let tokens: Vec<i32> = (0..(i * 5) % 13).map(|at| (i * 100 + at) as i32).collect();
        Ok(Example::from([("tokens".to_owned(), HostArray::of(&tokens, &[tokens.len()])?)]))
    }
    (13usize, text as fn(usize) -> Result<Example>).stream()
}

fn column(row: &Example, name: &str) -> Vec<i32> {
    row[name].to_vec().expect("int32")
}

/// Each pair of neighbours of each text is in one place, in order, and nothing else is.
#[test]
fn rows_have_each_token_with_its_next_once() -> Result<()> {
    let want: Vec<(i32, i32)> =
        (0..13).flat_map(|i: i32| (1..(i * 5) % 13).map(move |at| (i * 100 + at - 1, i * 100 + at))).collect();
    for length in [1, 5, 7, 12, 40] {
        for split in [false, true] {
            let texts = texts().epochs(1);
            let mut rows = if split { texts.concat_then_split(length) } else { texts.pack(length) };
            let rows = rows.items().collect::<Result<Vec<_>>>()?;
            let mut found = Vec::new();
            for (number, row) in rows.iter().enumerate() {
                let [tokens, targets, segments, positions] =
                    ["tokens", "targets", "segment_ids", "positions"].map(|name| column(row, name));
                for at in 0..length {
                    if segments[at] == 0 {
                        assert_eq!((tokens[at], targets[at], positions[at]), (0, 0, 0));
                        // What fills up comes last, and in rows that are full of split texts only at the end.
                        assert!(segments[at..].iter().all(|s| *s == 0) && (!split || number + 1 == rows.len()));
                        continue;
                    }
                    assert_eq!(tokens[at] % 100, positions[at]);
                    let same = at > 0 && segments[at] == segments[at - 1];
                    assert!(!same || tokens[at] == targets[at - 1], "a segment is one text");
                    assert!(at == 0 || same || segments[at] == segments[at - 1] + 1);
                    // A text that is whole in its row begins at 0.
                    assert!(split || at == 0 || same || positions[at] == 0);
                    found.push((tokens[at], targets[at]));
                }
            }
            assert_eq!(found, want, "length {length}, split {split}");
        }
    }
    Ok(())
}

#[test]
fn rows_go_on_from_every_position() -> Result<()> {
    for split in [false, true] {
        let make = || {
            let texts = texts().shuffled(2);
            if split { texts.concat_then_split(5) } else { texts.pack(5) }
        };
        let mut whole = make();
        let (mut rows, mut positions) = (Vec::new(), vec![whole.position()]);
        for _ in 0..40 {
            rows.push(whole.next_item().expect("a row")?);
            positions.push(whole.position());
        }
        for (at, position) in positions[..30].iter().enumerate() {
            let position: Value = serde_json::from_str(&position.to_string()).expect("JSON");
            let mut rest = make();
            rest.next_item();
            rest.seek(&position)?;
            assert_eq!(rest.items().take(10).collect::<Result<Vec<_>>>()?, rows[at..at + 10], "from {at}");
        }
    }
    fails(texts().pack(0).next_item().expect("an error"), &["a length of 0"]);
    let other = (1usize, |_| Ok(Example::from([("tokens".to_owned(), HostArray::of(&[1u8], &[1])?)])));
    fails(other.stream().pack(3).next_item().expect("an error"), &["int32 [length], and here is uint8[1]"]);
    let begin = texts().position();
    fails(texts().pack(3).seek(&serde_json::json!({ "before": begin, "done": 99 })), &["one in other texts"]);
    assert!(texts().epochs(0).pack(3).next_item().is_none());
    Ok(())
}
