//! Products and convolutions of bytes, and divisions of int32, are exact, although some are computed in f32 or float64.

use shardax::lax::{ConvOptions, DotOptions, Padding};

use super::*;

/// The sums of `depth` products of two numbers, by a product, a product of converted operands and a convolution with a window of one element.
/// Also returns the text of the product of converted operands.
fn sums(x: &Array, y: &Array, depth: usize, to: DType) -> Result<(Vec<Vec<f64>>, String)> {
    let (x, y) = (x.broadcast_to([9, depth]), y.broadcast_to([depth, 8]));
    let of_bytes = jit(move |x: Array, y: Array| DotOptions::new().preferred_element_type(to).matmul(x, y));
    let converted = jit(move |x: Array, y: Array| x.astype(to).matmul(y.astype(to)));
    let convolved = jit(move |x: Array, y: Array| {
        let (image, filter) = (x.reshape([1, 9, depth as i32]), y.reshape([1, depth as i32, 8]));
        let options = ConvOptions::new().dimension_numbers("NWC", "WIO", "NWC").preferred_element_type(to);
        lax::conv_general_dilated(image, filter, [1], Padding::Valid, options)
    });
    let text = converted.lower((&x, &y))?.as_text().to_string();
    let mut values = vec![floats(&converted.call((&x, &y))?)];
    if x.dtype() == y.dtype() {
        values.push(floats(&of_bytes.call((&x, &y))?));
        values.push(floats(&convolved.call((&x, &y))?));
    }
    Ok((values, text))
}

#[test]
fn sums_of_products_of_bytes_are_exact() -> Result<()> {
    common::quick::setup();
    // The largest depths at which no sum needs more than 24 bits, and the next ones.
    let cases: [(i32, DType, i32, DType, usize, bool); 7] = [
        (255, DType::U8, 255, DType::U8, 258, true),
        (255, DType::U8, 255, DType::U8, 259, false),
        (-128, DType::I8, -128, DType::I8, 1024, true),
        (-128, DType::I8, 127, DType::I8, 1025, false),
        (255, DType::U8, -128, DType::I8, 514, true),
        (255, DType::U8, -127, DType::I8, 515, false),
        (255, DType::U8, -128, DType::I8, 1, true),
    ];
    for (x, x_type, y, y_type, depth, is_short) in cases {
        for to in [DType::I32, DType::I64] {
            let is_one_type = x_type == y_type;
            let (x_bytes, y_bytes) = (full([1, 1], x).astype(x_type), full([1, 1], y).astype(y_type));
            let (values, text) = sums(&x_bytes, &y_bytes, depth, to)?;
            let expected = f64::from(x) * f64::from(y) * depth as f64;
            for values in values {
                assert_eq!(values, vec![expected; 72], "{depth} products of {x} and {y}");
            }
            let is_in_f32 = text.contains("xf32>");
            assert!(
                is_in_f32 == is_short || is_one_type && x_type == DType::I8,
                "{depth} products of {x} and {y}: {text}"
            );
        }
    }
    // Unsigned sums wrap around, and sums of nothing are 0.
    let (x, y) = (full([2, 3], -2).astype(DType::I8), full([3, 2], 5).astype(DType::U8));
    let wrapped = jit(|x: Array, y: Array| x.astype(DType::U32).matmul(y.astype(DType::U32))).call((&x, &y))?;
    assert_eq!(wrapped.to_vec::<u32>()?, [(-30i32).cast_unsigned(); 4]);
    let nothing = jit(|x: Array, y: Array| x.astype(DType::I32).matmul(y.astype(DType::I32)));
    let nothing = nothing.call((zeros([2, 0]).astype(DType::I8), zeros([0, 2]).astype(DType::U8)))?;
    assert_eq!(nothing.to_vec::<i32>()?, [0; 4]);
    Ok(())
}

/// The lowest bits of an integer, as a number of the type.
fn wrapped(x: i64, dtype: DType) -> i64 {
    match dtype {
        DType::I8 => i64::from(x as i8),
        DType::U8 => i64::from(x as u8),
        DType::I16 => i64::from(x as i16),
        DType::U16 => i64::from(x as u16),
        DType::I32 => i64::from(x as i32),
        _ => i64::from(x as u32),
    }
}

#[test]
fn products_of_integers_wrap_around() -> Result<()> {
    common::quick::setup();
    const BATCH: usize = 2;
    const ROWS: usize = 17;
    const COLUMNS: usize = 19;
    const DEPTH: usize = 40;
    fn integer(index: usize) -> i64 {
        i64::from((index as i32).wrapping_mul(77_777_777).wrapping_add(12_345))
    }
    for dtype in [DType::I8, DType::U8, DType::I16, DType::U16, DType::I32, DType::U32] {
        let operand = |shape: [usize; 3]| {
            let integers: Vec<i32> = (0..shape.iter().product()).map(|index| integer(index) as i32).collect();
            Array::from_slice(&integers, &shape).map(|x| x.astype(dtype))
        };
        // Both operands in row order, and both transposed.
        let products = jit(|x: Array, y: Array| {
            let transposed =
                einsum("bji,bkj->bik", (x.reshape([BATCH, DEPTH, ROWS]), y.reshape([BATCH, COLUMNS, DEPTH])));
            (x.matmul(y).astype(DType::I64), transposed.astype(DType::I64))
        });
        let (plain, transposed) = products.call((operand([BATCH, ROWS, DEPTH])?, operand([BATCH, DEPTH, COLUMNS])?))?;
        let [mut expected, mut expected_transposed] = [(); 2].map(|()| Vec::with_capacity(BATCH * ROWS * COLUMNS));
        for index in 0..BATCH * ROWS * COLUMNS {
            let (batch, row, column) = (index / (ROWS * COLUMNS), index / COLUMNS % ROWS, index % COLUMNS);
            let (x, y) = (batch * ROWS * DEPTH, batch * DEPTH * COLUMNS);
            let product = |x: usize, y: usize| wrapped(integer(x), dtype).wrapping_mul(wrapped(integer(y), dtype));
            let sum = (0..DEPTH)
                .fold(0i64, |sum, k| sum.wrapping_add(product(x + row * DEPTH + k, y + k * COLUMNS + column)));
            let transposed =
                (0..DEPTH).fold(0i64, |sum, k| sum.wrapping_add(product(x + k * ROWS + row, y + column * DEPTH + k)));
            expected.push(wrapped(sum, dtype));
            expected_transposed.push(wrapped(transposed, dtype));
        }
        assert_eq!(plain.to_vec::<i64>()?, expected, "{dtype}");
        assert_eq!(transposed.to_vec::<i64>()?, expected_transposed, "{dtype}, transposed");
    }
    Ok(())
}

#[test]
fn convolutions_of_bytes_are_exact() -> Result<()> {
    common::quick::setup();
    let image = (arange(2 * 9 * 9 * 32) * 37 % 255 - 127).astype(DType::I8).reshape([2, 9, 9, 32]);
    let filter = (arange(3 * 3 * 32 * 64) * 91 % 253 - 126).astype(DType::I8).reshape([3, 3, 32, 64]);
    for (stride, groups) in [(1, 1), (2, 1), (1, 4)] {
        let filter = lax::slice_in_dim(&filter, 0, 32 / groups, 2);
        let convolved = |to: DType| {
            jit(move |x: Array, w: Array| {
                let options =
                    ConvOptions::new().channels_last(2).feature_group_count(groups).preferred_element_type(to);
                let wide = |x: Array| if to.is_float() { x.astype(to) } else { x };
                lax::conv_general_dilated(wide(x), wide(w), [stride, stride], Padding::Same, options)
            })
        };
        let found = convolved(DType::I32).call((&image, &filter))?;
        let exact = convolved(DType::F64).call((&image, &filter))?;
        assert_eq!(found.dtype(), DType::I32);
        assert_eq!(floats(&found), floats(&exact));
    }
    Ok(())
}

#[test]
fn quotients_of_int32_are_exact() -> Result<()> {
    common::quick::setup();
    let edges =
        [0, 1, -1, 2, -2, 3, 7, -7, 1 << 15, 1 << 30, i32::MAX, i32::MAX - 1, i32::MIN, i32::MIN + 1, i32::MIN + 2];
    let noise = (0..49u32).map(|i| i.wrapping_mul(2_654_435_761).cast_signed() >> (i % 31));
    let numbers: Vec<i32> = edges.into_iter().chain(noise).collect();
    let pairs: Vec<(i32, i32)> = numbers.iter().flat_map(|x| numbers.iter().map(|y| (*x, *y))).collect();
    let (x, y): (Vec<i32>, Vec<i32>) = pairs.iter().copied().unzip();
    let divide = jit(|x: Array, y: Array| (lax::div(&x, &y), lax::rem(&x, &y), floor_divide(&x, &y), &x % &y));
    let (quotients, remainders, floors, modulos) = divide.call((array(x), array(y)))?;
    let [quotients, remainders, floors, modulos] =
        [quotients, remainders, floors, modulos].map(|x| x.to_vec::<i32>().expect("values"));
    for (i, (x, y)) in pairs.into_iter().enumerate() {
        let exact = if y == 0 { (-1, x) } else { (x.wrapping_div(y), x.wrapping_rem(y)) };
        assert_eq!((quotients[i], remainders[i]), exact, "{x} / {y}");
        if y != 0 {
            let is_rounded = exact.1 != 0 && (exact.1 < 0) != (y < 0);
            let floor = exact.0.wrapping_sub(i32::from(is_rounded));
            assert_eq!((floors[i], modulos[i]), (floor, exact.1 + if is_rounded { y } else { 0 }), "{x} // {y}");
        }
    }
    // Many numbers by divisors next to their factors, where a rounded quotient would be an integer.
    let x = (0..20_000i32).map(|i| i32::MAX - i * 7);
    let (x, y): (Vec<i32>, Vec<i32>) = x.flat_map(|x| [2, 3, 46_340, 46_341, 65_537].map(|y| (x, y))).unzip();
    let expected: Vec<i32> = x.iter().zip(&y).map(|(x, y)| x / y).collect();
    assert_eq!(divide.call((array(x), array(y)))?.0.to_vec::<i32>()?, expected);
    Ok(())
}

#[test]
fn functions_of_int64_are_in_float64() -> Result<()> {
    common::quick::setup();
    // 2^40 and the next integers are one number in float32.
    let first = 1i64 << 40;
    let (x, half) = (array([first, first + 1, first + 3]), array([0.0f32, 1.0, 2.0]).astype(DType::F16));
    let compute = jit(|x: Array, half: Array| {
        let (counts, _) = histogram(&x, 3);
        let small = array([4097, 4099, 4101]);
        // Values of int32 do not become float16 where the positions are.
        let interpolated = interp(&half, array([0, 1, 2]), small);
        (rint(&x), gradient(&x, 1.0, 0), unwrap(&x, std::f64::consts::TAU, 0), counts, interpolated)
    });
    let (rounded, slopes, phases, counts, interpolated) = compute.call((x, half))?;
    assert_eq!(rounded.to_vec::<f64>()?, [0.0, 1.0, 3.0].map(|step| step + first as f64));
    assert_eq!(slopes.to_vec::<f64>()?, [1.0, 1.5, 2.0]);
    assert_eq!(phases.to_vec::<f64>()?, rounded.to_vec::<f64>()?);
    assert_eq!(counts.to_vec::<f64>()?, [1.0, 1.0, 1.0]);
    assert_eq!(interpolated.to_vec::<f32>()?, [4097.0, 4099.0, 4101.0]);
    Ok(())
}
