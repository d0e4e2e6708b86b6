//! Work on examples by several threads, and random changes of images.

use serde_json::Value;
use shardax::prelude::*;
use shardax_train::data::*;

use super::fails;

fn image(i: usize) -> Result<Example> {
    let pixels: Vec<u8> = (0..6 * 5 * 3).map(|at| (at * 7 + i * 13) as u8).collect();
    Ok(Example::from([("image".to_owned(), HostArray::from_slice(&pixels, &[6, 5, 3])?)]))
}

fn images() -> SourceStream<(usize, fn(usize) -> Result<Example>)> {
    (7usize, image as fn(usize) -> Result<Example>).stream().shuffled(3)
}

#[test]
fn threads_change_nothing_but_the_time() -> Result<()> {
    let augment = Augment::new(5).random_flip().random_crop(2).color_jitter(0.5).cutout(2);
    let make = |threads| images().enumerate().parallel_map(threads, move |item| augment.example(item));
    let want: Vec<Example> =
        images().enumerate().map(move |item| augment.example(item)).items().take(30).collect::<Result<_>>()?;
    for threads in [0, 1, 4] {
        assert_eq!(make(threads).items().take(30).collect::<Result<Vec<_>>>()?, want, "{threads} threads");
    }
    // Each time an image comes it looks different.
    assert!(want[..7].iter().all(|first| want[7..].iter().all(|later| later != first)));
    // From each position it must continue as if it had not stopped.
    let mut uninterrupted = make(2);
    for at in 0..20 {
        let position: Value = serde_json::from_str(&uninterrupted.position().to_string()).expect("JSON");
        let mut resumed = make(3);
        resumed.next_item();
        resumed.seek(&position)?;
        assert_eq!(resumed.items().take(3).collect::<Result<Vec<_>>>()?, want[at..at + 3], "from {at}");
        uninterrupted.next_item();
    }
    // What ends, ends; it may be sent back to its beginning.
    let begin = images().epochs(1).position();
    let mut once = images().epochs(1).parallel_map(3, Ok);
    assert_eq!((once.items().count(), once.items().count()), (7, 0));
    once.seek(&begin)?;
    assert_eq!(once.items().count(), 7);
    Ok(())
}

#[test]
fn errors_and_panics_of_threads_are_returned_for_their_item() -> Result<()> {
    let numbers = (6usize, |i: usize| match i {
        2 => Err(shardax::Error::new(shardax::ErrorKind::Value, "example 2 is damaged")),
        i => Ok(i),
    });
    let mut mapped = numbers.stream().epochs(1).parallel_map(2, |i: usize| match i {
        3 => panic!("at example 3"),
        4 => Err(shardax::Error::new(shardax::ErrorKind::Value, "4 is too many")),
        i => Ok(i * 10),
    });
    let mut results: Vec<Result<usize>> = mapped.items().collect();
    assert_eq!(results.len(), 6);
    assert_eq!(results.pop().expect("the last")?, 50);
    for with in ["4 is too many", "panicked", "example 2 is damaged"] {
        fails(results.pop().expect("an error"), &[with]);
    }
    assert_eq!(results.into_iter().collect::<Result<Vec<_>>>()?, [0, 10]);
    Ok(())
}

/// Each kind of augmentation of images that are small enough to compare by hand.
#[test]
fn augmentations_of_small_images() -> Result<()> {
    fn pixels(image: &HostArray) -> Vec<u8> {
        image.bytes().to_vec()
    }
    let row = HostArray::from_slice(&[1u8, 2, 3], &[1, 3, 1])?;
    fn all(augment: Augment, image: &HostArray) -> Result<Vec<Vec<u8>>> {
        (0..400).map(|n| Ok(pixels(&augment.image(n, image)?))).collect()
    }
    fn share(all: &[Vec<u8>], is: &[u8]) -> f64 {
        all.iter().filter(|x| *x == is).count() as f64 / all.len() as f64
    }
    let flipped = all(Augment::new(1).random_flip(), &row)?;
    let (plain, mirrored) = (share(&flipped, &[1, 2, 3]), share(&flipped, &[3, 2, 1]));
    assert!(plain + mirrored == 1.0 && (0.4..0.6).contains(&plain), "{plain} {mirrored}");
    // Moved by -1, 0 or 1 to each side: black comes in.
    let cropped = all(Augment::new(2).random_crop(1), &row)?;
    for (is, want) in [([1, 2, 3], 1.0), ([2, 3, 0], 1.0), ([0, 1, 2], 1.0), ([0, 0, 0], 6.0)] {
        let got = share(&cropped, &is);
        assert!((got - want / 9.0).abs() < 0.09, "{is:?}: {got}");
    }
    // A grey image has no saturation, and one of a single grey no contrast: brightness remains.
    let grey = HostArray::from_slice(&[100u8; 12], &[2, 2, 3])?;
    for image in all(Augment::new(3).color_jitter(0.3), &grey)? {
        assert!(image.iter().all(|v| *v == image[0] && (70..=130).contains(v)), "{image:?}");
    }
    let white = HostArray::from_slice(&[255u8; 3], &[1, 1, 3])?;
    assert!(all(Augment::new(4).color_jitter(9.0), &white)?.iter().any(|image| image[0] == 255));
    // A square of the mean, in one place and cut off at the border.
    let square =
        HostArray::from_slice(&(0..64).map(|i| if i % 2 == 0 { 0 } else { 200u8 }).collect::<Vec<_>>(), &[8, 8, 1])?;
    for image in all(Augment::new(5).cutout(4), &square)? {
        let blank = image.iter().filter(|v| **v == 100).count();
        assert!((4..=16).contains(&blank), "{blank}");
    }
    assert_eq!(all(Augment::new(6), &square)?[0], square.bytes());

    // Whatever it is given, it answers.
    let wild = Augment::new(7).random_flip().random_crop(usize::MAX).color_jitter(1e30).cutout(usize::MAX);
    for shape in [[0, 4, 3], [4, 0, 3], [4, 3, 0], [1, 1, 1], [3, 4, 7]] {
        let image = HostArray::from_slice(&vec![9u8; shape.iter().product()], &shape)?;
        assert_eq!(wild.image(1, &image)?.shape(), shape);
    }
    fails(
        wild.image(0, &HostArray::from_slice(&[1.0f32; 4], &[2, 2, 1])?),
        &["uint8 [rows, columns, channels]", "float32[2, 2, 1]"],
    );
    fails(Augment::new(0).color_jitter(f32::NAN).image(0, &row), &["must be finite, got NaN"]);
    fails(wild.example((0, Example::new())), &["without `image`"]);
    Ok(())
}

/// A short last batch is filled up, and the mask says which examples are real.
#[test]
fn the_last_batch_is_masked() -> Result<()> {
    let batches = images().epochs(1).batch_masked(4).items().collect::<Result<Vec<_>>>()?;
    let masks: Vec<Vec<bool>> = batches.iter().map(|batch| batch["mask"].to_vec()).collect::<Result<_>>()?;
    assert_eq!(masks, [vec![true; 4], vec![true, true, true, false]]);
    assert_eq!(batches[1]["image"].shape(), [4, 6, 5, 3]);
    assert!(batches[1]["image"].bytes()[3 * 90..].iter().all(|v| *v == 0));
    assert_eq!(images().epochs(1).batch_masked(7).items().count(), 1);
    fn named(i: usize) -> Result<Example> {
        Ok(Example::from([("mask".to_owned(), HostArray::from_slice(&[i as u8], &[1])?)]))
    }
    fails((2usize, named).stream().pad(2).next_item().expect("an item"), &["pad", "a `mask` of their own"]);
    fails((2usize, named).stream().batch_masked(2).next_item().expect("an error"), &["a `mask` of their own"]);
    let large = (1usize, image as fn(usize) -> Result<Example>).stream().epochs(1);
    fails(large.batch_masked(usize::MAX).next_item().expect("an error"), &["do not fit in memory"]);
    Ok(())
}
