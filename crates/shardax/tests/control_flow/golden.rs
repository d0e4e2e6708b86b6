//! Values, gradients, tangents and batches against JAX.

use std::path::Path;

use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use shardax::prelude::*;
use shardax::{control_flow, tree};

use crate::common::setup;

struct Goldens {
    bytes: Vec<u8>,
    cases: std::collections::HashMap<String, String>,
}

impl Goldens {
    fn read(family: &str) -> Goldens {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/{family}.safetensors"));
        let bytes = std::fs::read(path).expect("the golden file");
        let (_, metadata) = SafeTensors::read_metadata(&bytes).expect("a header");
        let cases = metadata.metadata().clone().expect("cases");
        Goldens { bytes, cases }
    }

    fn get(&self, key: &str) -> Option<Array> {
        let tensors = SafeTensors::deserialize(&self.bytes).expect("tensors");
        let view = tensors.tensor(key).ok()?;
        let dtype = match view.dtype() {
            Dtype::F32 => DType::F32,
            Dtype::I32 => DType::I32,
            Dtype::BOOL => DType::Bool,
            other => panic!("{key} has dtype {other:?}"),
        };
        Some(Array::from_bytes(view.data(), dtype, view.shape()).expect("an array"))
    }

    fn list(&self, name: &str, part: &str, at: &[usize]) -> Option<Vec<Array>> {
        at.iter().map(|i| self.get(&format!("{name}/{part}/{i}"))).collect()
    }

    /// Compares everything that there is about a case.
    fn check(&self, name: &str, f: impl Fn(&[Array]) -> Result<Vec<Array>>) {
        setup();
        let info: Value = serde_json::from_str(&self.cases[name]).expect("JSON");
        let number = |key: &str| info[key].as_u64().expect(key) as usize;
        let numbers = |key: &str| -> Vec<usize> {
            info[key].as_array().into_iter().flatten().map(|v| v.as_u64().expect(key) as usize).collect()
        };
        let tol = info["tol"].as_f64().expect("tol");
        let grad_tol = info["grad_tol"].as_f64().unwrap_or(tol);
        let all_ins: Vec<usize> = (0..number("ins")).collect();
        let all_outs: Vec<usize> = (0..number("outs")).collect();
        let ins = self.list(name, "in", &all_ins).expect("arguments");
        let want = self.list(name, "out", &all_outs).expect("results");
        let run = |args: Vec<Array>| f(&args);

        compare(&format!("{name} eagerly"), &f(&ins).unwrap_or_else(|e| panic!("{name}: {e}")), &want, tol);
        let jitted = jit(run).call(ins.clone()).unwrap_or_else(|e| panic!("{name} under jit: {e}"));
        compare(&format!("{name} under jit"), &jitted, &want, tol);

        let (args, outs) = (numbers("argnums_float"), numbers("outs_float"));
        // The function of the differentiated arguments alone, to the differentiated results.
        let of_floats = |given: Vec<Array>| -> Result<Vec<Array>> {
            let mut all = ins.clone();
            args.iter().zip(given).for_each(|(i, x)| all[*i] = x);
            let results = f(&all)?;
            Ok(outs.iter().map(|i| results[*i].clone()).collect())
        };
        let floats: Vec<Array> = args.iter().map(|i| ins[*i].clone()).collect();
        if let (Some(cts), Some(want)) = (self.list(name, "ct", &outs), self.list(name, "vjp", &args))
            && !args.is_empty()
        {
            let grads =
                vjp::<(Vec<Array>,), _>(of_floats, floats.clone()).and_then(|(_, pull_back)| pull_back.call(cts));
            compare(
                &format!("vjp of {name}"),
                &grads.unwrap_or_else(|e| panic!("vjp of {name}: {e}")).0,
                &want,
                grad_tol,
            );
        }
        if let (Some(tangents), Some(want)) = (self.list(name, "tan", &args), self.list(name, "jvp", &outs))
            && !args.is_empty()
        {
            let out = jvp::<(Vec<Array>,), _>(of_floats, floats.clone(), tangents.clone());
            let (primal, tangent) = out.unwrap_or_else(|e| panic!("jvp of {name}: {e}"));
            let want_primal: Vec<Array> =
                outs.iter().map(|i| self.get(&format!("{name}/out/{i}")).expect("out")).collect();
            compare(&format!("primal of jvp of {name}"), &primal, &want_primal, tol);
            compare(&format!("jvp of {name}"), &tangent, &want, grad_tol);
            // The linearized function is the same map of tangents.
            let linear = linearize::<(Vec<Array>,), _>(of_floats, floats).and_then(|(_, f)| f.call(tangents));
            let linear = linear.unwrap_or_else(|e| panic!("linearize of {name}: {e}"));
            compare(&format!("linearize of {name}"), &linear, &want, grad_tol);
        }
        for variant in 0.. {
            let batch = if variant == 0 { "batch".to_owned() } else { format!("batch{variant}") };
            let Some(axes) = info[format!("{batch}_in_axes")].as_array() else { break };
            let axes: Vec<Option<i32>> = axes.iter().map(|a| a.as_i64().map(|a| a as i32)).collect();
            let args: Vec<Array> = all_ins
                .iter()
                .map(|i| self.get(&format!("{name}/{batch}/in/{i}")).unwrap_or_else(|| ins[*i].clone()))
                .collect();
            let want = self.list(name, &format!("{batch}/out"), &all_outs).expect("batched results");
            let got = vmap(run).in_axes((axes.clone(),)).call(args);
            compare(
                &format!("vmap {axes:?} of {name}"),
                &got.unwrap_or_else(|e| panic!("vmap {axes:?} of {name}: {e}")),
                &want,
                tol,
            );
        }
    }
}

fn compare(what: &str, got: &[Array], want: &[Array], tol: f64) {
    assert_eq!(got.len(), want.len(), "{what}: number of results");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert_eq!((got.shape(), got.dtype()), (want.shape(), want.dtype()), "{what}: type of result {i}");
        let (g, w) = (got.to_f64_vec().expect(what), want.to_f64_vec().expect(what));
        for (g, w) in g.iter().zip(&w) {
            let same = (g.is_nan() && w.is_nan()) || g == w || (g - w).abs() <= tol * (1.0 + w.abs());
            assert!(same, "{what}: result {i} is {got}, should be {want}");
        }
    }
}

/// A tree's leaves.
fn leaves<T: Tree>(result: Result<T>) -> Result<Vec<Array>> {
    Ok(tree::leaves(&result?))
}

/// `x[0]`
fn first(x: &Array) -> Result<Array> {
    Ok(x.split(x.size(), 0)?[0].squeeze(0))
}

fn sum_step(c: Array, x: Array) -> (Array, Array) {
    let c = c + &x;
    (c.clone(), c * x)
}

fn rnn_step(a: &[Array]) -> impl Fn(Array, Array) -> (Array, Array) {
    let (w, u) = (a[0].clone(), a[1].clone());
    move |h, x| {
        let h = (w.matmul(h) + u.matmul(x)).tanh();
        (h.clone(), h)
    }
}

#[test]
fn scans() {
    let g = Goldens::read("control");
    for name in ["scan_sum", "scan_length_1", "scan_length_0", "scan_i32"] {
        g.check(name, |a| leaves(scan(sum_step, a[0].clone(), a[1].clone())));
    }
    g.check("scan_rnn", |a| leaves(scan(rnn_step(a), a[2].clone(), a[3].clone())));
    g.check("scan_rnn_reverse", |a| {
        leaves(ScanOptions::default().reverse(true).scan(rnn_step(a), a[2].clone(), a[3].clone()))
    });
    g.check("scan_two_carries", |a| {
        let step = |(a, b): (Array, Array), (x, y): (Array, Array)| {
            let next = (b.clone(), a.sin() * &x + y);
            (next, (a * &b, x - b))
        };
        leaves(scan(step, (a[0].clone(), a[1].clone()), (a[2].clone(), a[3].clone())))
    });
    g.check("scan_counter", |a| {
        let step = |(n, v): (Array, Array)| ((&n + 1, &v * (n + 1)), v);
        leaves(scan_n(step, (array(0), a[0].clone()), 4))
    });
    g.check("scan_no_output", |a| Ok(vec![scan(|c: Array, x| (c * x + 1, ()), a[0].clone(), a[1].clone())?.0]));
    g.check("scan_unrolled", |a| leaves(ScanOptions::default().unroll(2).scan(sum_step, a[0].clone(), a[1].clone())));
    g.check("scan_nested", |a| {
        let inner = |c: Array, x: Array| {
            let c = c.sin() + &x;
            (c.clone(), c * x)
        };
        leaves(scan(|c, row: Array| scan(inner, c, row), a[0].clone(), a[1].clone()))
    });
    g.check("scan_of_cond", |a| {
        let step = |c: Array, x: Array| -> Result<(Array, Array)> {
            let c = cond(x.greater(0), |()| c.sin() * &x, |()| &c - &x, ())?;
            Ok((c.clone(), c))
        };
        leaves(scan(step, a[0].clone(), a[1].clone()))
    });
    g.check("associative_scan_add", |a| leaves(associative_scan(|a: Array, b: Array| a + b, a[0].clone(), false, 0)));
    g.check("map_square", |a| leaves(control_flow::map(|x: Array| &x * x.sum(..), a[0].clone())));
}

#[test]
fn higher_derivatives_of_scans() {
    let g = Goldens::read("control");
    fn f(x: Array) -> Result<Array> {
        Ok(scan(|c: Array, k: Array| (c.sin() * k, ()), x, array([1.0f32, 2.0, 3.0]))?.0)
    }
    g.check("grad_of_grad_of_scan", |a| {
        let x = &a[0];
        Ok(vec![grad(f).call(x)?, grad(grad(f)).call(x)?, grad(grad(grad(f))).call(x)?])
    });
    fn sum_of_squares(x: Array) -> Result<Array> {
        let step = |c: Array, v: Array| {
            let c = c * v + 1;
            (c.clone(), c)
        };
        let first = first(&x)?;
        Ok(scan(step, first, x)?.1.square().sum(..))
    }
    g.check("hessian_of_scan", |a| Ok(vec![hessian(sum_of_squares).call(&a[0])?]));
}

#[test]
fn while_loops() {
    let g = Goldens::read("control");
    g.check("while_double", |a| {
        let limit = a[1].clone();
        leaves(while_loop(|x: Array| x.abs().max(..).less(&limit), |x| &x * 2 + 0.1 * &x * &x, a[0].clone()))
    });
    g.check("while_count", |a| {
        let (n, x) = (&a[0], &a[1]);
        let body = |(i, v): (Array, Array)| (i + 1, v.sin() + x);
        leaves(while_loop(|(i, _)| i.less(n), body, (array(0), x.clone())))
    });
    g.check("while_collatz", |a| {
        let body = |(n, k): (Array, Array)| {
            let even = remainder(&n, 2).equal(0);
            (where_(even, floor_divide(&n, 2), &n * 3 + 1), k + 1)
        };
        Ok(vec![while_loop(|(n, _)| n.greater(1), body, (a[0].clone(), array(0)))?.1])
    });
    g.check("while_never", |a| leaves(while_loop(|_| Array::from(false), |x| x + 1, a[0].clone())));
}

#[test]
fn fori_loops() {
    let g = Goldens::read("control");
    g.check("fori_static", |a| {
        let x = &a[0];
        leaves(fori_loop(0, 5, |i, v| v * (i * 0.5).cos() + x, x.clone()))
    });
    g.check("fori_dynamic", |a| leaves(fori_loop(&a[0], &a[1], |i, v| v * 1.5 + i, a[2].clone())));
    g.check("fori_empty", |a| leaves(fori_loop(3, 3, |_, v| v + 1, a[0].clone())));
}

#[test]
fn conds() {
    let g = Goldens::read("control");
    let of_two = |a: &[Array]| {
        let on_true = |(x, y): (Array, Array)| x.sin() * y;
        leaves(cond(&a[0], on_true, |(x, y)| x - &y * &y, (a[1].clone(), a[2].clone())))
    };
    g.check("cond_true", of_two);
    g.check("cond_false", of_two);
    g.check("cond_i32_predicate", of_two);
    for name in ["cond_closure_true", "cond_closure_false"] {
        g.check(name, |a| {
            let z = cond(&a[0], |()| &a[1] * 2, |()| a[2].clone(), ())?;
            Ok(vec![z.clone(), z.sum(..)])
        });
    }
    for name in ["cond_tree_true", "cond_tree_false"] {
        g.check(name, |a| {
            let (x, y) = (&a[1], &a[2]);
            leaves(cond(&a[0], |()| (x.clone(), y.clone()), |()| (y.clone(), x * y), ()))
        });
    }
    g.check("cond_computed_predicate", |a| {
        leaves(cond(a[0].sum(..).greater(0), |x: Array| x.cos(), |x| x.exp(), a[0].clone()))
    });
    g.check("cond_nested", |a| {
        let (q, x) = (&a[1], &a[2]);
        let on_true = |()| cond(q, |x: Array| x.sin(), |x| x.cos(), x.clone());
        leaves(cond(&a[0], on_true, |()| cond(q, |x: Array| x.exp(), |x| x, x.clone()), ()))
    });
    for name in ["switch_0", "switch_1", "switch_2", "switch_beyond", "switch_negative"] {
        g.check(name, |a| leaves(switch(&a[0], (|x: Array| x.sin(), |x: Array| &x * &x, |x: Array| -x), a[1].clone())));
    }
    g.check("grad_of_grad_of_cond", |a| {
        let p = a[0].clone();
        let f = move |x: Array| cond(&p, |x: Array| x.sin(), |x| &x * &x * &x, x);
        Ok(vec![grad(grad(f)).call(&a[1])?])
    });
}

fn tripled(x: Array) -> Result<Array> {
    custom_jvp(|x: Array| x.sin()).defjvp(|(x,): (Array,), (t,): (Array,)| (x.sin(), 3 * x.cos() * t)).call(x)
}

fn doubled(x: Array, y: Array) -> Result<Array> {
    custom_vjp(|x: Array, y: Array| x.sin() * y)
        .defvjp(
            |x: Array, y: Array| (x.sin() * &y, (x.cos(), x.sin(), y)),
            |(cos, sin, y): (Array, Array, Array), ct: Array| (2 * cos * &ct * y, 5 * sin * ct),
        )
        .call((x, y))
}

fn babylonian(a: Array) -> Result<Array> {
    fn root(a: Array) -> Result<Array> {
        let f = |x: &Array| 0.5 * (x + &a / x);
        let far = |(x, y): (Array, Array)| (x - y).abs().greater(1e-6);
        Ok(while_loop(far, |(_, y)| (y.clone(), f(&y)), (a.clone(), f(&a)))?.1)
    }
    let fwd = |a: Array| -> Result<(Array, Array)> {
        let x = root(a)?;
        Ok((x.clone(), x))
    };
    custom_vjp(root).defvjp(fwd, |x: Array, ct: Array| (ct / (2 * x),)).call(a)
}

#[test]
fn custom_rules() {
    let g = Goldens::read("transform");
    g.check("custom_jvp", |a| Ok(vec![tripled(a[0].clone())?]));
    g.check("custom_jvp_grad_of_grad", |a| {
        let x = &a[0];
        Ok(vec![grad(tripled).call(x)?, grad(grad(tripled)).call(x)?, grad(grad(grad(tripled))).call(x)?])
    });
    g.check("custom_jvp_nondiff", |a| {
        let f = |x: Array| x.exp();
        let scaled = custom_jvp(f).defjvp(move |(x,): (Array,), (t,): (Array,)| (f(x), 10 * t));
        Ok(vec![scaled.call(&a[0])?])
    });
    g.check("custom_jvp_log1pexp", |a| {
        fn log1pexp(x: Array) -> Result<Array> {
            let rule = |(x,): (Array,), (t,): (Array,)| -> Result<(Array, Array)> {
                Ok((log1pexp(x.clone())?, (1 - 1 / (1 + x.exp())) * t))
            };
            custom_jvp(|x: Array| (x.exp() + 1).log()).defjvp(rule).call(x)
        }
        Ok(vec![log1pexp(a[0].clone())?])
    });
    g.check("custom_vjp", |a| Ok(vec![doubled(a[0].clone(), a[1].clone())?]));
    g.check("custom_vjp_vmap_of_grad", |a| {
        let f = |x: Array, y: Array| -> Result<Array> { Ok(doubled(x, y)?.sum(..)) };
        let both = grad(f).argnums((shardax::Arg::<0>, shardax::Arg::<1>));
        leaves(vmap(both).in_axes((0, None)).call((&a[0], &a[1])))
    });
    g.check("custom_vjp_grad_of_grad", |a| {
        let f = |x: Array| doubled(x.clone(), x);
        Ok(vec![grad(f).call(&a[0])?, grad(grad(f)).call(&a[0])?])
    });
    g.check("custom_vjp_clip_gradient", |a| {
        let clip = custom_vjp(|x: Array| x).defvjp(|x: Array| (x, ()), |(), ct: Array| (ct.clip(-0.5, 0.5),));
        Ok(vec![clip.call(&a[0])?])
    });
    g.check("custom_vjp_fixed_point", |a| Ok(vec![babylonian(a[0].clone())?]));
    g.check("custom_vjp_in_scan", |a| {
        let f = |x: Array| -> Result<Array> {
            let first = first(&x)?;
            Ok(scan(|c, v| -> Result<(Array, ())> { Ok((doubled(c, v)?, ())) }, first, x)?.0)
        };
        Ok(vec![grad(f).call(&a[0])?])
    });
}
