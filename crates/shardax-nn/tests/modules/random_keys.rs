//! Layers that draw random keys: a program in which they draw the same numbers again warns.

use std::sync::{Mutex, OnceLock};

use super::*;

fn warnings() -> &'static Mutex<Vec<String>> {
    static WARNINGS: OnceLock<Mutex<Vec<String>>> = OnceLock::new();
    WARNINGS.get_or_init(|| {
        config::set_warning_hook(|text| warnings().lock().expect("warnings").push(text.to_owned()));
        Mutex::default()
    })
}

/// The warnings about random numbers of the functions below, and of `pmap`, while `f` ran. Other tests run at the same time.
fn warnings_of(f: impl FnOnce() -> Result<()>) -> Result<Vec<String>> {
    let before = warnings().lock().expect("warnings").len();
    f()?;
    let list = warnings().lock().expect("warnings");
    let is_ours =
        |text: &&String| ["forgets draws", "returns draws", "pmap draws"].iter().any(|name| text.contains(name));
    Ok(list[before..].iter().filter(is_ours).cloned().collect())
}

fn noise() -> Dropout {
    Dropout::new(0.5, &mut Rngs::new(0))
}

fn forgets(mut layer: Dropout, x: Array) -> Array {
    layer.forward(x)
}

fn returns(mut layer: Dropout, x: Array) -> (Dropout, Array) {
    let y = layer.forward(x);
    (layer, y)
}

#[test]
fn keys_that_are_drawn_again_warn() -> Result<()> {
    quick::setup();
    let x = ones([8, 4]);
    let dropped = warnings_of(|| {
        let step = jit(forgets);
        let (first, second) = (step.call((noise(), &x))?, step.call((noise(), &x))?);
        assert!(first.equal(second).all(..).item::<bool>()?);
        Ok(())
    })?;
    assert_eq!(dropped.len(), 1, "{dropped:?}");
    assert!(dropped[0].contains("forgets draws random numbers by argument[0]"), "{dropped:?}");
    assert!(dropped[0].contains("return the model, or the `Optimizer` that holds it"), "{dropped:?}");

    let shared = warnings_of(|| {
        let mapped = pmap(returns).axis_name("batch").in_axes((None, 0)).out_axes((None, 0));
        let (_, y) = mapped.call((noise(), &x))?;
        // The mask of each device is the same.
        assert!(y.equal(y.get(0)).all(..).item::<bool>()?);
        Ok(())
    })?;
    assert_eq!(shared.len(), 1, "{shared:?}");
    assert!(shared[0].contains("pmap draws random numbers by argument[0]"), "{shared:?}");
    assert!(shared[0].contains("each draws the same numbers for its part of the batch"), "{shared:?}");

    let intended = warnings_of(|| {
        let (_, _) = jit(returns).call((noise(), &x))?;
        let mut still = noise();
        still.eval();
        let _: Array = jit(forgets).call((still, &x))?;
        let unchecked =
            pmap(returns).axis_name("batch").in_axes((None, 0)).out_axes((None, 0)).check_replication(false);
        let (_, _) = unchecked.call((noise(), &x))?;
        Ok(())
    })?;
    assert_eq!(intended, [""; 0]);
    Ok(())
}
