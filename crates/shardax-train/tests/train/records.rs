//! Structs whose fields are the arrays of an example.

use shardax::prelude::*;
use shardax_train::data::*;

use super::{fails, setup};

#[derive(Record, Clone, Debug, PartialEq)]
struct Reading {
    #[record(shape = [2, 3])]
    window: Vec<f32>,
    position: [f64; 2],
    image: [[u8; 2]; 2],
    r#type: i32,
    is_valid: bool,
    boxes: Vec<[f32; 4]>,
}

fn reading(i: i32) -> Reading {
    Reading {
        window: (0..6).map(|j| (10 * i + j) as f32).collect(),
        position: [0.5, i as f64],
        image: [[1, 2], [3, i as u8]],
        r#type: i,
        is_valid: i % 2 == 0,
        boxes: vec![[0.0; 4]; 2],
    }
}

/// The arrays of a batch.
#[derive(Record, Tree, Clone)]
struct Batch {
    window: Array,
    r#type: Array,
    is_valid: Array,
}

#[test]
fn records_convert_to_examples_and_back() -> Result<()> {
    setup();
    let example = reading(3).to_example()?;
    let shapes: Vec<_> = example.iter().map(|(name, x)| format!("{name}: {}{:?}", x.dtype(), x.shape())).collect();
    assert_eq!(
        shapes,
        [
            "boxes: float32[2, 4]",
            "image: uint8[2, 2]",
            "is_valid: bool[]",
            "position: float64[2]",
            "type: int32[]",
            "window: float32[2, 3]"
        ]
    );
    assert_eq!(Reading::from_example(example)?, reading(3));
    // The element type of an empty list is known.
    let empty = Reading { boxes: Vec::new(), ..reading(0) };
    assert_eq!(empty.to_example()?["boxes"].shape(), [0, 4]);
    assert_eq!(Reading::from_example(empty.to_example()?)?, empty);
    Ok(())
}

#[test]
fn records_are_a_source_of_batches() -> Result<()> {
    setup();
    let readings: Vec<Reading> = (0..10).map(reading).collect();
    let mut batches = readings.stream().shuffled(0).batch(4).map(Batch::from_example).prefetch(2);
    let batch = batches.next_item().expect("a batch")?;
    assert_eq!((batch.window.shape(), batch.r#type.shape()), (&[4, 2, 3][..], &[4][..]));
    let first_column = batch.window.get((.., 0, 0));
    assert!(first_column.equal(batch.r#type.clone() * 10).all(..).item::<bool>()?);
    // Batches are arguments of compiled functions.
    let count = jit(|batch: Batch| batch.is_valid.astype(DType::I32).sum(..));
    assert!(count.call(&batch)?.item::<i32>()? <= 4);
    // A function of the index is a source too.
    let mut by_index = (10usize, |i: usize| reading(i as i32).to_example()).stream().batch(4);
    assert_eq!(by_index.next_item().expect("a batch")?["type"].to_vec::<i32>()?, [0, 1, 2, 3]);
    Ok(())
}

#[test]
fn mistaken_records_name_the_field() {
    setup();
    let short = Reading { window: vec![0.0; 5], ..reading(0) };
    fails(
        short.to_example(),
        &["field `window` of Reading: an array float32[2, 3] does not have 20 bytes", "records.rs"],
    );

    #[derive(Record)]
    struct Ragged {
        rows: Vec<Vec<f32>>,
    }
    let ragged = Ragged { rows: vec![vec![1.0, 2.0], vec![3.0]] };
    fails(ragged.to_example(), &["field `rows` of Ragged: row 0 has the shape [2], and row 1 [1]"]);
    fails(Ragged { rows: vec![] }.to_example(), &["an empty list whose rows have no known shape"]);

    let mut example = reading(0).to_example().expect("an example");
    // Reading an example: a field that is missing, has another dtype, or has another length.
    example.remove("type");
    fails(
        Batch::from_example(example.clone()).map(drop),
        &["field `type` of Batch: the example has no array of this name"],
    );
    fails(Reading::from_example(example), &["field `type` of Reading", "\"window\""]);

    #[derive(Record, Debug)]
    struct Other {
        #[allow(dead_code)]
        position: [f32; 2],
    }
    let example = reading(0).to_example().expect("an example");
    fails(Other::from_example(example), &["the array is float64[2], and the field a list of `f32`"]);
    #[derive(Record, Debug)]
    struct Longer {
        #[allow(dead_code)]
        position: [f64; 3],
    }
    let example = reading(0).to_example().expect("an example");
    fails(Longer::from_example(example), &["the array is float64[2], and the field has 3 rows"]);
}
