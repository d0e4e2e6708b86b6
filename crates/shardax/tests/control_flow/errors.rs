//! Mistakes in control flow, and their errors.

use shardax::control_flow::map;
use shardax::prelude::*;
use shardax::{Error, ErrorKind};

use crate::common::quick::setup;

/// Checks an error's kind and that its message has these phrases; that it names a line of this file.
fn says<T>(result: Result<T>, kind: ErrorKind, phrases: &[&str]) -> Error {
    let error = result.err().expect("an error");
    assert_eq!(error.kind(), kind, "{error}");
    let text = error.to_string();
    for phrase in phrases {
        assert!(text.contains(phrase), "{phrase:?} is not in: {text}");
    }
    let location = error.location().unwrap_or_else(|| panic!("no line: {error}"));
    assert!(location.file().ends_with("control_flow/errors.rs"), "{error}");
    error
}

#[test]
fn scan_operands() {
    setup();
    fn step(c: Array, (_, _): (Array, Array)) -> (Array, ()) {
        (c, ())
    }
    let two = |a: Array, b: Array| scan(step, Array::from(0), (a, b));
    says(two(zeros(3), zeros(4)), ErrorKind::Value, &["scan got values with different leading axis sizes: 3, 4"]);
    says(
        two(zeros(3), Array::from(1.0)),
        ErrorKind::Value,
        &["scan got value with no leading axis to scan over: xs[1] has type float32[]~"],
    );
    let nothing = ScanOptions::new().scan(|c: Array, ()| (c, ()), Array::from(0), ());
    says(nothing, ErrorKind::Value, &["scan got no values to scan over and `length` not provided", "scan_n"]);
    let length = ScanOptions::new().length(4).scan(|c: Array, _: Array| (c, ()), Array::from(0), zeros(3));
    says(length, ErrorKind::Value, &["scan got `length` argument of 4 which disagrees with leading axis sizes [3]"]);
    let unroll = ScanOptions::new().unroll(0).scan(|c: Array, _: Array| (c, ()), Array::from(0), zeros(3));
    says(unroll, ErrorKind::Value, &["unroll"]);
}

#[derive(Clone)]
struct State {
    position: Array,
    speed: Array,
}

impl Tree for State {
    fn flatten(&self, out: &mut tree::Flat) {
        out.node(tree::Node::Struct { name: "State", fields: &["position", "speed"] });
        Tree::flatten(&self.position, out);
        Tree::flatten(&self.speed, out);
    }
    fn unflatten(from: &mut tree::Unflatten<'_>) -> Result<Self> {
        from.node()?;
        Ok(State { position: from.leaf()?, speed: from.leaf()? })
    }
}

fn with_wrong_shape(s: State) -> State {
    State { position: s.position.reshape([3, 1]), ..s }
}

#[test]
fn carry_types() {
    setup();
    // The message names the leaf by its path, with both types, because a carry can have many leaves.
    fn state() -> State {
        State { position: zeros(3), speed: zeros(2) }
    }
    fn step(s: State, x: Array) -> (State, Array) {
        (State { speed: s.speed.astype(DType::I32), ..s }, x)
    }
    says(
        scan(step, state(), zeros(4)),
        ErrorKind::Type,
        &[
            "scan body function carry input and carry output must have equal types",
            "carry.speed has type float32[2]",
            "output has type int32[2], so the dtypes do not match",
            "help: convert the output with `astype`",
        ],
    );
    says(
        while_loop(|s: State| s.speed.sum(..).less(1), with_wrong_shape, state()),
        ErrorKind::Type,
        &["body_fun output and input must have identical types", "carry.position has type float32[3]", "shapes"],
    );
    says(
        fori_loop(0, 3, |_, (a, b): (Array, Array)| (b, a), (zeros(2), zeros(3))),
        ErrorKind::Type,
        &["fori_loop body function", "carry[0] has type float32[2]", "float32[3]"],
    );
    fn longer(c: Vec<Array>, x: Array) -> (Vec<Array>, Array) {
        ([c, vec![x.clone()]].concat(), x)
    }
    says(
        scan(longer, vec![zeros(3)], zeros([2, 3])),
        ErrorKind::Type,
        &["carry input and carry output must have the same pytree structure", "a list of 1, the other a list of 2"],
    );
}

#[test]
fn plain_numbers_take_the_type_of_the_carry() -> Result<()> {
    setup();
    let halves = array([1.0f32, 2.0]).astype(DType::Bf16);
    let (sum, _) = scan(|c: Array, x: Array| (c + x, ()), Array::from(0), halves.clone())?;
    assert_eq!((sum.dtype(), sum.to_f64()?), (DType::Bf16, 3.0));
    let doubled = while_loop(|x: Array| x.sum(..).less(10), |x| x * 2.0, Array::from(1))?;
    assert_eq!((doubled.dtype(), doubled.to_f64()?), (DType::F32, 16.0));
    Ok(())
}

#[test]
fn while_conditions() {
    setup();
    fn x() -> Array {
        array([1.0f32, 2.0])
    }
    says(
        while_loop(|x: Array| x.less(3), |x| x + 1, x()),
        ErrorKind::Type,
        &["cond_fun must return a boolean scalar, but got output type(s) [bool[2]]", ".any(..)"],
    );
    says(
        while_loop(|x: Array| x.sum(..), |x| x + 1, x()),
        ErrorKind::Type,
        &["cond_fun must return a boolean scalar, but got output type(s) [float32[]]"],
    );
    fn f(x: Array) -> Result<Array> {
        while_loop(|x: Array| x.less(100), |x| x * 2, x)
    }
    says(
        // The number of steps depends on values, so that the residuals of the steps have no known size.
        grad(f).call(1.0f32),
        ErrorKind::Value,
        &["Reverse-mode differentiation does not work for while_loop or fori_loop with a dynamic trip count", "scan"],
    );
    fn g(n: Array, x: Array) -> Result<Array> {
        fori_loop(0, n, |_, x| x * 2, x)
    }
    says(grad(g).argnums(shardax::Arg::<1>).call((3, 1.0f32)), ErrorKind::Value, &["fori_loop with static bounds"]);
}

#[test]
fn fori_bounds() {
    setup();
    says(
        fori_loop(array(0i32), array(3i8), |_, x: Array| x, Array::from(0)),
        ErrorKind::Type,
        &["lower and upper arguments to fori_loop must have equal types, got int32 and int8"],
    );
    says(
        fori_loop(0, 2.5, |_, x: Array| x, Array::from(0)),
        ErrorKind::Type,
        &["must be integer scalars, got float32[]"],
    );
    says(fori_loop(0, zeros(2), |_, x: Array| x, Array::from(0)), ErrorKind::Type, &["must be integer scalars"]);
}

#[test]
fn branches() {
    setup();
    fn x() -> Array {
        array(1.0f32)
    }
    // Branches must have results of the same types and structure; the message names the first that differs.
    says(
        cond(true, |x: Array| x, |x| x.astype(DType::I32), x()),
        ErrorKind::Type,
        &["cond branches must have equal output types but they differ", "true_fun has type float32[]", "dtypes"],
    );
    says(
        cond(true, |x: Array| vec![x], |x: Array| vec![x.clone(), x], x()),
        ErrorKind::Type,
        &["cond branch outputs must have the same pytree structure", "a list of 2"],
    );
    says(
        switch(0, (|x: Array| (x.clone(), x), |x: Array| (x.clone(), x.reshape([1]))), x()),
        ErrorKind::Type,
        &["output[1] of branch 0 has type float32[]", "branch 1 has type float32[1]", "shapes"],
    );
    says(cond(arange(0..3), |x: Array| x, |x| x, x()), ErrorKind::Type, &["Pred must be a scalar, got int32[3]"]);
    says(
        switch(1.0, (|x: Array| x, |x: Array| x), x()),
        ErrorKind::Type,
        &["Index type must be an integer, got float32"],
    );
    says(switch(zeros(2), (|x: Array| x, |x: Array| x), x()), ErrorKind::Type, &["Branch index must be scalar"]);
    let none: Vec<fn(Array) -> Array> = Vec::new();
    says(switch(0, none, x()), ErrorKind::Value, &["Empty branch sequence"]);
}

#[test]
fn errors_of_closures_come_out() {
    setup();
    fn bad() -> Array {
        zeros(3) + zeros(4)
    }
    says(scan(|c: Array, x: Array| (c, x + bad()), Array::from(0), zeros(2)), ErrorKind::Value, &["broadcasting"]);
    says(while_loop(|c: Array| c.less(bad().sum(..)), |c| c, zeros(())), ErrorKind::Value, &["broadcasting"]);
    says(cond(true, |x: Array| x + bad(), |x| x, zeros(3)), ErrorKind::Value, &["broadcasting"]);
    says(map(|x: Array| x + bad(), zeros(2)), ErrorKind::Value, &["broadcasting"]);
    fn failing(_: Array, _: Array) -> Result<(Array, Array)> {
        Err(Error::new(ErrorKind::Value, "my own"))
    }
    says(scan(failing, Array::from(0), zeros(2)), ErrorKind::Value, &["my own"]);
    fn deep(x: Array) -> Result<Array> {
        scan(|c: Array, ()| (c + bad(), ()), x, ()).map(|(c, ())| c)
    }
    says(jit(deep).call(zeros(3)), ErrorKind::Value, &["scan got no values"]);
}

#[test]
fn custom_rules() {
    setup();
    // A rule whose results have other types than the function would otherwise fail far from the rule.
    let f = custom_vjp(|x: Array| x).defvjp(|x: Array| (x, ()), |(), ct: Array| (ct.reshape([1]),));
    says(
        grad(|x: Array| f.call(x)).call(1.0f32),
        ErrorKind::Type,
        &["Custom VJP bwd rule must produce an output with the same", "expected float32[] but got float32[1]"],
    );
    says(
        jvp(|x: Array| f.call(x), 1.0f32, 1.0f32),
        ErrorKind::Type,
        &["can't apply forward-mode differentiation (jvp) to a custom_vjp function."],
    );
    let f = custom_vjp(|x: Array| x).defvjp(|x: Array| (x, ()), |(), ct: Array| (ct.clone(), ct));
    says(grad(|x: Array| f.call(x)).call(1.0f32), ErrorKind::Type, &["args tuple of the primal function", "1 arrays"]);
    let f = custom_vjp(|x: Array| x).defvjp(|x: Array| (x.reshape([1]), ()), |(), ct: Array| (ct,));
    says(grad(|x: Array| f.call(x)).call(1.0f32), ErrorKind::Type, &["Custom VJP fwd rule", "float32[1]"]);

    let f = custom_jvp(|x: Array| x).defjvp(|(x,): (Array,), (t,): (Array,)| (x, t.reshape([1])));
    says(
        grad(|x: Array| f.call(x)).call(1.0f32),
        ErrorKind::Type,
        &["Custom JVP rule must produce primal and tangent outputs with equal shapes and dtypes", "float32[1]"],
    );
    let f = custom_jvp(|x: Array| vec![x]).defjvp(|(x,): (Array,), (t,): (Array,)| (vec![x], vec![t.clone(), t]));
    says(grad(|x: Array| f.call(x).map(|v| v[0].clone())).call(1.0f32), ErrorKind::Type, &["pytree"]);
}

#[test]
fn rules_say_nothing_about_captures() {
    setup();
    let capturing =
        |w: Array| custom_jvp(move |x: Array| x * &w).defjvp(|(x,): (Array,), (t,): (Array,)| (x, t)).call(2.0f32);
    says(
        grad(capturing).call(1.0f32),
        ErrorKind::NotImplemented,
        &["Detected differentiation of a custom_jvp function with respect to a closed-over value", "as an argument"],
    );
    fn in_rule(w: Array) -> Result<Array> {
        let (a, b) = (w.clone(), w.clone());
        custom_vjp(|x: Array| x * 2).defvjp(move |x: Array| (x * 2 * &a, ()), move |(), ct: Array| (ct * &b,)).call(w)
    }
    says(grad(in_rule).call(1.0f32), ErrorKind::Leak, &["a rule of a custom_vjp function captured", "as an argument"]);
}
