//! Every optimizer on parameters whose types have shardings.

use shardax_nn::optim::*;

use super::*;

type Params = (Array, Array);

fn draw(i: u32, shape: &[usize]) -> Array {
    random::normal(random::key(i), shape)
}

fn steps<T: GradientTransformation<Params>>(
    optimizer: &T,
    place: impl Fn(Array, PartitionSpec) -> Result<Array>,
) -> Result<Params> {
    fn specs() -> (PartitionSpec, PartitionSpec) {
        (P!["data", "model"], P!["model"])
    }
    let place_params = |w: Array, b: Array| -> Result<Params> { Ok((place(w, specs().0)?, place(b, specs().1)?)) };
    let mut params = place_params(draw(0, &[8, 16]), draw(1, &[16]))?;
    let mut state = optimizer.init(&params)?;
    for i in 0..3 {
        let grads = place_params(draw(2 + i, &[8, 16]), draw(9 + i, &[16]))?;
        let updates;
        (updates, state) = optimizer.update(grads, state, &params)?;
        let before = types(&params);
        params = apply_updates(params, updates)?;
        assert_eq!(types(&params), before);
    }
    Ok(params)
}

/// In a slice, optimizers that together have all kinds of states: sums, moments, norms of layers, factors and counts.
const SLICE: [&str; 5] = ["sgd_momentum", "adamw", "lamb", "adafactor", "multi_steps"];

#[track_caller]
fn check<T: GradientTransformation<Params>>(name: &str, optimizer: T) {
    if !quick::is_complete() && !SLICE.contains(&name) {
        return;
    }
    setup();
    let want = steps(&optimizer, |x, _| Ok(x)).unwrap_or_else(|e| panic!("{name}: {e}"));
    let mesh = mesh(AxisType::Explicit);
    for set in [false, true].into_iter().step_by(quick::one_of(2)) {
        let _mesh = set.then(|| set_mesh(&mesh).expect("no trace"));
        let result = steps(&optimizer, |x, spec| device_put(&x, &NamedSharding::new(&mesh, spec)));
        let result = result.unwrap_or_else(|e| panic!("{name} set={set}: {e}"));
        equal(&result.0, &want.0, 1e-4, name);
        equal(&result.1, &want.1, 1e-4, name);
    }
}

#[test]
fn of_moments() {
    check("sgd", sgd(0.1));
    check("sgd_momentum", sgd_momentum(0.1, 0.9, true));
    check("adam", adam(0.1));
    check("adamw", adamw(0.1, 0.01));
    check("rmsprop", rmsprop(0.1));
    check("adagrad", adagrad(0.1));
    check("lion", lion(0.1));
    check("yogi", yogi(0.1));
    check("radam", radam(0.1));
    check("adabelief", adabelief(0.1));
}

#[test]
fn of_norms() {
    check("lamb", lamb(0.1, 0.01));
    check("lars", lars(0.1, 0.01));
    check("fromage", fromage(0.1));
    check("clip_by_global_norm", (clip_by_global_norm(0.5), sgd(0.1)));
    check("adafactor", adafactor(Some(0.1)));
    check("apply_if_finite", apply_if_finite(adam(0.1), 2));
    check("multi_steps", multi_steps(adam(0.1), 2));
    check("schedule_free", schedule_free(sgd(0.1), 0.1));
}

#[test]
fn of_matrices() -> Result<()> {
    setup();
    let mesh = mesh(AxisType::Explicit);
    let x = random::normal(random::key(0), [8, 16]);
    fn check_steps<T: GradientTransformation<Array>>(optimizer: T, x: &Array, split: &Array, name: &str) -> Result<()> {
        let steps = |x: Array| -> Result<Array> {
            let (_, state) = optimizer.update(x.clone(), optimizer.init(&x)?, &x)?;
            Ok(optimizer.update(2 * &x, state, &x)?.0)
        };
        let want = steps(x.clone())?;
        for have in [steps(split.clone())?, jit(&steps).call(split)?] {
            assert_eq!(have.type_name(), "float32[8@data,16@model]", "{name}");
            equal(&have, &want, 1e-4, name);
        }
        Ok(())
    }
    let split = device_put(&x, &NamedSharding::new(&mesh, P!["data", "model"]))?;
    check_steps(scale_by_muon(), &x, &split, "muon")?;
    let galore = contrib::ScaleByGalore { rank: 3, ..contrib::scale_by_galore(scale_by_adam()) };
    check_steps(galore, &x, &split, "galore")
}
