//! Padding that is many times wider than the array.

use shardax::numpy::{self, PadMode, PadOptions};

use super::common::quick::setup;
use super::*;

/// The value at a position relative to the first element, of elements that are mirrored with their values. Each reflection mirrors at the
/// first or last element, or, for `Symmetric`, half a position outside of it.
fn odd(x: &[i64], position: i64, mode: PadMode) -> i64 {
    let (n, outside) = (x.len() as i64, i64::from(mode == PadMode::Symmetric));
    if position < 0 {
        2 * x[0] - odd(x, -position - outside, mode)
    } else if position >= n {
        2 * x[x.len() - 1] - odd(x, 2 * (n - 1) - position + outside, mode)
    } else {
        x[position as usize]
    }
}

/// The place of the element at a position.
fn even(n: i64, position: i64, mode: PadMode) -> usize {
    let (period, last) = match mode {
        PadMode::Wrap => (n, n),
        PadMode::Symmetric => (2 * n, 2 * n - 1),
        _ => (2 * (n - 1), 2 * (n - 1)),
    };
    let place = position.rem_euclid(period);
    place.min(if mode == PadMode::Wrap { place } else { last - place }) as usize
}

#[test]
fn wide_padding_repeats_and_mirrors_the_elements() -> Result<()> {
    setup();
    let (widths, elements) = ((52, 41), [[3i64, 5, -2], [1, 1, 40]]);
    let paddings = |x: Array| -> Vec<Array> {
        let widths = [(0, 0), widths];
        let modes = [PadMode::Wrap, PadMode::Symmetric, PadMode::Reflect];
        let even = modes.map(|mode| numpy::pad(&x, widths, mode));
        let odd = [PadMode::Symmetric, PadMode::Reflect]
            .map(|mode| PadOptions::new().reflect_type("odd").pad(&x, widths, mode));
        even.into_iter().chain(odd).collect()
    };
    let f = jit(|x: Array| -> Vec<Array> {
        [DType::I32, DType::I8, DType::U16, DType::Bf16].iter().flat_map(|dtype| paddings(x.astype(*dtype))).collect()
    });
    let x = array(elements.map(|row| row.map(|x| x as i32)));
    for (i, y) in f.call(&x)?.iter().enumerate() {
        let mode = [PadMode::Wrap, PadMode::Symmetric, PadMode::Reflect, PadMode::Symmetric, PadMode::Reflect][i % 5];
        let expected = elements.iter().flat_map(|row| {
            (-52..3 + 41).map(move |p| if i % 5 < 3 { row[even(3, p, mode)] } else { odd(row, p, mode) })
        });
        // Integers of few bits wrap; bfloat16 holds these numbers to 1 in 256.
        match y.dtype() {
            DType::I32 => assert_eq!(y.to_vec::<i32>()?, expected.map(|x| x as i32).collect::<Vec<_>>(), "{mode:?}"),
            DType::I8 => assert_eq!(y.to_vec::<i8>()?, expected.map(|x| x as i8).collect::<Vec<_>>(), "{mode:?}"),
            DType::U16 => assert_eq!(y.to_vec::<u16>()?, expected.map(|x| x as u16).collect::<Vec<_>>(), "{mode:?}"),
            _ => floats(y).iter().zip(expected).for_each(|(y, want)| {
                assert!((y - want as f64).abs() <= (want as f64).abs() / 128.0, "{mode:?}: {y}, want {want}");
            }),
        }
    }
    Ok(())
}

/// A program that listed its pieces would have a billion.
#[test]
fn padding_to_almost_the_largest_dimension_is_a_short_program() -> Result<()> {
    setup();
    for mode in [PadMode::Symmetric, PadMode::Reflect] {
        for n in [1, 2, 5] {
            let width = (1 << 30) - 10;
            let f = jit(move |x: Array| {
                let odd = PadOptions::new().reflect_type("odd").pad(&x, width, mode);
                (odd, numpy::pad(&x, width, mode))
            });
            let lowered = f.lower(shape_dtype_struct(&[n], DType::I8))?;
            assert!(lowered.as_text().len() < 50_000, "{}", lowered.as_text());
        }
    }
    Ok(())
}
