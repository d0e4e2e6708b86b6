//! Carries of loops say their type once; functions with rules leave arguments out.

use super::*;

#[test]
fn a_carry_is_typed_by_its_start() -> Result<()> {
    crate::common::quick::setup();
    let x = while_loop(|x| x.less(100), |x| x * 3, array(1))?;
    assert_eq!(x.item::<i32>()?, 243);
    let (a, b) = fori_loop(0, 5, |i, (a, b)| (&a + i, b * a), (array(1), array(1)))?;
    assert_eq!((a.item::<i32>()?, b.item::<i32>()?), (11, 56));
    let ((sum, count), partial) = scan(|(s, n), x| ((&s + x, n + 1), s), (zeros(()), array(0)), ones(3))?;
    assert_eq!((sum.item::<f32>()?, count.item::<i32>()?), (3.0, 3));
    assert_eq!(partial.to_vec::<f32>()?, [0.0, 1.0, 2.0]);
    let (last, ()) = scan_n(|x| (x * 2, ()), array(1), 5)?;
    assert_eq!(last.item::<i32>()?, 32);
    Ok(())
}

#[test]
fn arguments_that_are_not_differentiated() -> Result<()> {
    crate::common::quick::setup();
    // y * x^n, with a power, a table and a name that no rule differentiates.
    type Power = (i32, Static<String>);
    fn f((n, _): Power, x: Array, table: Array) -> Array {
        x.pow(n) * table.sum(..)
    }
    let power = std::rc::Rc::new(custom_vjp(f).nondiff_argnums((Arg::<0>, Arg::<2>)).defvjp(
        move |p: Power, x: Array, table: Array| (f(p, x.clone(), table), x),
        |((n, name), table): (Power, Array), x: Array, ct: Array| {
            assert_eq!(name.0, "cubic");
            (ct * x.pow(n - 1) * n * table.sum(..),)
        },
    ));
    let apply = |p: Power, x: Array, table: Array| power.call((p, x, table));
    fn args() -> ((i32, Static<String>), Array, Array) {
        ((3, Static("cubic".to_owned())), array(2.0f32), array([1.0f32, 4.0]))
    }
    assert_eq!(power.call(args())?.item::<f32>()?, 40.0);
    let (by_x, by_table) = grad(apply).argnums((Arg::<1>, Arg::<2>)).call(args())?;
    assert_eq!((by_x.item::<f32>()?, by_table.to_vec::<f32>()?), (60.0, vec![0.0, 0.0]));
    let rows = vmap(grad(apply).argnums(Arg::<1>)).in_axes((None, 0, None));
    let xs = array([1.0f32, 2.0]);
    assert_eq!(jit(rows).call((args().0, xs, args().2))?.to_vec::<f32>()?, [15.0, 60.0]);
    // A rule that returns one cotangent too many is an error.
    let wrong = custom_vjp(|x: Array, y: Array| x * y)
        .nondiff_argnums(Arg::<0>)
        .defvjp(|x: Array, y: Array| (x * y, ()), |_: Array, (), ct: Array| (ct.clone(), ct));
    let error = grad(move |y: Array| wrong.call((2.0, y))).call(1.0f32).err().map(|e| e.to_string());
    assert!(error.is_some_and(|e| e.contains("Custom VJP bwd rule must produce")));
    Ok(())
}

/// With JAX's values of `power(3, sin(x))` at 0.7.
#[test]
fn jvp_rules_of_arguments_that_are_not_differentiated() -> Result<()> {
    crate::common::quick::setup();
    let power = custom_jvp(|n: i32, x: Array| integer_pow(x, n)).nondiff_argnums(Arg::<0>).defjvp(
        |n: i32, (_, x): (i32, Array), (_, dx): (i32, Array)| (integer_pow(&x, n), dx * n * integer_pow(&x, n - 1)),
    );
    let power = std::rc::Rc::new(power);
    let f = move |x: Array| power.call((3, x.sin()));
    let slope = grad(f.clone());
    assert!((slope.call(0.7f32)?.item::<f32>()? - 0.952_266_2).abs() < 1e-6);
    assert!((grad(slope).call(0.7f32)?.item::<f32>()? - 1.459_057_8).abs() < 1e-5);
    let (y, dy) = jvp::<(Array,), _>(f.clone(), array(0.7f32), array(2.0f32))?;
    assert!((y.item::<f32>()? - 0.267_360_9).abs() < 1e-6 && (dy.item::<f32>()? - 1.904_532_4).abs() < 1e-5);
    let slopes = vmap(grad(f)).call(array([0.1f32, 0.7]))?.to_vec::<f32>()?;
    assert!((slopes[0] - 0.029_750_76).abs() < 1e-6 && (slopes[1] - 0.952_266_2).abs() < 1e-6);
    // An array that is not differentiated: its tangent is zero, whatever it is.
    let scaled = custom_jvp(|s: Array, x: Array| s * x)
        .nondiff_argnums(Arg::<0>)
        .defjvp(|s: Array, (_, x): (Array, Array), (ds, dx): (Array, Array)| (&s * &x, &s * dx * 10 + ds * x));
    let slopes = grad(move |s: Array, x: Array| scaled.call((s, x))).argnums((Arg::<0>, Arg::<1>));
    let (of_s, of_x) = slopes.call((2.0f32, 3.0f32))?;
    assert_eq!((of_s.item::<f32>()?, of_x.item::<f32>()?), (0.0, 20.0));
    Ok(())
}
