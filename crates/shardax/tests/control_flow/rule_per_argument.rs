//! `defjvps`: rules for single arguments, with the values of JAX's `defjvps`.

use shardax::prelude::*;

use crate::close;
use crate::common::quick::setup;

#[test]
fn defjvps_adds_the_parts_of_all_arguments() -> Result<()> {
    setup();
    let f = custom_jvp(|x: Array, y: Array| x.sin() * y).defjvps((
        |dx: Array, _result: Array, x: Array, y: Array| x.cos() * dx * y,
        |dy: Array, _result: Array, x: Array, _y: Array| x.sin() * dy,
    ));
    let (value, tangent) = jvp(&f, (2.0f32, 3.0f32), (1.0f32, 10.0f32))?;
    close(&value, &[2.7278922]);
    close(&tangent, &[-1.2484405 + 9.092974]);
    let (by_x, by_y) = jit(grad(&f).argnums((0, 1))).call((2.0f32, 3.0f32))?;
    close(&by_x, &[-1.2484405]);
    close(&by_y, &[0.9092974]);
    close(&vmap(grad(&f)).in_axes((0, None)).call((arange(3.0f32), 2.0f32))?, &[2.0, 1.0806046, -0.8322937]);
    Ok(())
}

#[test]
fn defjvps_none_stands_for_a_zero_tangent() -> Result<()> {
    setup();
    let f = custom_jvp(|x: Array, y: Array| x.square() * y)
        .defjvps((|dx: Array, _result: Array, x: Array, y: Array| 2 * x * y * dx, None));
    close(&grad(&f).call((2.0f32, 3.0f32))?, &[12.0]);
    close(&grad(&f).argnums(1).call((2.0f32, 3.0f32))?, &[0.0]);
    Ok(())
}

/// The rule is not the derivative, so that the second derivative shows which rule it used.
#[test]
fn defjvps_rules_apply_to_the_result_they_receive() -> Result<()> {
    setup();
    let f = custom_jvp(|x: Array| x.exp()).defjvps((|dx: Array, result: Array, _x: Array| 2 * result * dx,));
    close(&grad(grad(&f)).call(0.0f32)?, &[4.0]);
    Ok(())
}

#[test]
fn defjvps_of_structures_and_integers() -> Result<()> {
    setup();
    let f = custom_jvp(|(x, y): (Array, Array), n: Array| (&x * &y, x * n)).defjvps((
        |(dx, dy): (Array, Array), _result: (Array, Array), (x, y): (Array, Array), n: Array| {
            (&dx * y + dy * x, dx * n)
        },
        None,
    ));
    let total = |x: Array, y: Array, n: Array| -> Result<Array> {
        let (a, b) = f.call(((x, y), n))?;
        Ok(a + b)
    };
    let (by_x, by_y) = grad(total).argnums((0, 1)).call((2.0f32, 3.0f32, 4))?;
    close(&by_x, &[7.0]);
    close(&by_y, &[2.0]);
    Ok(())
}
