//! References to transformed functions are functions.

use shardax::named_call;
use shardax::numpy::vectorize;
use shardax::prelude::*;

use crate::close;

fn cube(x: Array) -> Array {
    x.pow(3)
}

/// Transforms the function by reference twice, and calls it afterwards.
fn check(f: impl Function<(Array,), Output = Array>, derivative: f32) -> Result<()> {
    let x = array(2.0f32);
    assert_eq!(jit(|x: Array| f.call(x)).call(&x)?.to_string(), f.call(&x)?.to_string());
    assert_eq!(grad(|x: Array| f.call(x)).call(&x)?.item::<f32>()?, derivative);
    Ok(())
}

#[test]
fn transformed_functions_are_transformed_by_reference() -> Result<()> {
    let rule = custom_jvp(cube).defjvp(|(x,): (Array,), (t,): (Array,)| (cube(x.clone()), 5 * x.square() * t));
    check(&rule, 20.0)?;
    check(&rule, 20.0)?;
    let rules = custom_vjp(cube).defvjp(|x: Array| (cube(x.clone()), x), |x: Array, g: Array| (7 * x.square() * g,));
    check(&rules, 28.0)?;
    let slope = grad(cube);
    check(&slope, 12.0)?;
    check(&jacfwd(&slope), 6.0)?;
    check(&hessian(cube), 6.0)?;
    check(&checkpoint(cube), 12.0)?;
    check(&named_call(cube, "cube"), 12.0)?;
    check(&vectorize(cube), 12.0)?;
    check(&assert_max_traces(cube, 16), 12.0)?;
    // A reference of a reference type, as a closure captures it.
    let mapped = vmap(&slope);
    let sum_of_slopes =
        jit(|x: Array| -> Result<Array> { Ok(vmap(&mapped).call(x.get(None))?.get(0) + mapped.call(x)?) });
    close(&sum_of_slopes.call(array([1.0f32, 2.0]))?, &array([6.0f32, 24.0]));
    let (value, gradient) = jit(&value_and_grad(cube)).call(2.0f32)?;
    assert_eq!((value.item::<f32>()?, gradient.item::<f32>()?), (8.0, 12.0));
    let aux = value_and_grad(|x: Array| (cube(x.clone()), x)).has_aux();
    let ((value, _), gradient) = jit(&aux).call(2.0f32)?;
    assert_eq!((value.item::<f32>()?, gradient.item::<f32>()?), (8.0, 12.0));
    Ok(())
}
