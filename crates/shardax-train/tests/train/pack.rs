//! Texts of many lengths in rows of one.

use serde_json::Value;
use shardax::prelude::*;
use shardax_train::data::*;

use super::data::goes_on;
use super::fails;

/// Texts of 0 to 12 tokens, each number once.
fn texts() -> SourceStream<(usize, fn(usize) -> Result<Example>)> {
    fn text(i: usize) -> Result<Example> {
        let tokens: Vec<i32> = (0..(i * 5) % 13).map(|at| (i * 100 + at) as i32).collect();
        Ok(Example::from([("tokens".to_owned(), HostArray::from_slice(&tokens, &[tokens.len()])?)]))
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
            let mut pairs = Vec::new();
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
                    // A text that is not divided over rows begins at 0.
                    assert!(split || at == 0 || same || positions[at] == 0);
                    pairs.push((tokens[at], targets[at]));
                }
            }
            assert_eq!(pairs, want, "length {length}, split {split}");
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
        let mut uninterrupted = make();
        let (mut rows, mut positions) = (Vec::new(), vec![uninterrupted.position()]);
        for _ in 0..40 {
            rows.push(uninterrupted.next_item().expect("a row")?);
            positions.push(uninterrupted.position());
        }
        for (at, position) in positions[..30].iter().enumerate() {
            // Positions pass through text, as in a checkpoint.
            let position: Value = serde_json::from_str(&position.to_string()).expect("JSON");
            let mut resumed = make();
            resumed.next_item();
            resumed.seek(&position)?;
            assert_eq!(resumed.items().take(10).collect::<Result<Vec<_>>>()?, rows[at..at + 10], "from {at}");
        }
    }
    fails(texts().pack(0).next_item().expect("an error"), &["a length of 0"]);
    let other_dtype = (1usize, |_| Ok(Example::from([("tokens".to_owned(), HostArray::from_slice(&[1u8], &[1])?)])));
    fails(other_dtype.stream().pack(3).next_item().expect("an error"), &["int32 [length], but has uint8[1]"]);
    let begin = texts().position();
    fails(texts().pack(3).seek(&serde_json::json!({ "before": begin, "done": 99 })), &["belongs to other texts"]);
    assert!(texts().epochs(0).pack(3).next_item().is_none());
    Ok(())
}

/// Every stage of a pipeline at once, with buffers half given out, threads at work and batches read ahead: from each
/// position it goes on with the same batches.
#[test]
fn all_stages_together_go_on_from_every_position() {
    let sources = |seed| texts().shuffled(seed).shuffle(5, seed + 10);
    for process in 0..2 {
        let make = || {
            let mixed = sources(1).mix(2.0, vec![(sources(2), 1.0)], 9).expect("weights");
            let rows = mixed.shard(process, 2).concat_then_split(6).shuffle(4, 7).enumerate();
            let marked = rows.parallel_map(3, |(number, mut row)| {
                row.insert("number".to_owned(), HostArray::from_slice(&[number as i32], &[])?);
                Ok(row)
            });
            marked.batch_masked(3).prefetch(2)
        };
        goes_on(make, 12);
    }
}

/// Positions that no stream gave: an error, or a place in the data, and never a panic.
#[test]
fn positions_that_cannot_be_are_errors_or_places() -> Result<()> {
    let make = || {
        let mixed = texts().shuffled(1).repeat().mix(2.0, vec![(texts().shuffled(2).repeat(), 1.0)], 9)?;
        let rows = mixed.shuffle(4, 5).pack(5).enumerate().parallel_map(2, |(_, row)| Ok(row));
        Ok::<_, shardax::Error>(rows.batch(2).prefetch(2))
    };
    let mut stream = make()?;
    stream.items().take(3).for_each(drop);
    let text = stream.position().to_string();
    // Each number in it, one after the other, and each closing of an object, is something else.
    let (mut errors, mut cases) = (0, 0);
    let places: Vec<usize> = (1..text.len()).filter(|at| text.as_bytes()[*at].is_ascii_digit()).collect();
    for at in places {
        for other in ["18446744073709551615", "9223372036854775808", "-1", "\"x\"", "null"] {
            let odd = format!("{}{other}{}", &text[..at], &text[at + 1..]);
            let Ok(position) = serde_json::from_str::<Value>(&odd) else { continue };
            let mut stream = make()?;
            let went = stream.seek(&position);
            cases += 1;
            errors += usize::from(went.is_err());
            if went.is_ok() {
                stream.items().take(2).for_each(drop);
            }
        }
    }
    assert!(cases > 30 && errors > cases / 2, "{errors} errors of {cases}");
    Ok(())
}
