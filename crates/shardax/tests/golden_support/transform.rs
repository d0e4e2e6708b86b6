//! Results of transformations; the case's `doc` has each function as a formula.

use std::rc::Rc;

use shardax::prelude::*;
use shardax::{Arg, numpy as np, tree};

use super::{Case, Fun, many, one};

pub fn function(case: &Case) -> Option<Fun> {
    match case.name.as_str() {
        name if name.starts_with("custom_") => custom(name),
        name if name.starts_with("grads_of_") => higher(name),
        name if name.contains("complex") || name == "grad_holomorphic" => complex(name),
        name if name.starts_with("hessian") || name.starts_with("jac") || name.starts_with("hvp") => second_order(name),
        name => first_order(name),
    }
}

/// A tree's leaves.
fn leaves<T: Tree>(result: Result<T>) -> Result<Vec<Array>> {
    Ok(tree::leaves(&result?))
}

fn rosenbrock(x: Array) -> Array {
    let (here, next) = (x.get(..-1), x.get(1..));
    ((next - here.square()).square() * 100 + (here - 1).square()).sum(..)
}

fn mlp(w: Array, b: Array, x: Array) -> Array {
    (x.matmul(w) + b).tanh()
}

fn second_order(name: &str) -> Option<Fun> {
    match name {
        "hessian_rosenbrock" => many(|a| leaves(hessian(rosenbrock).call(&a[0]))),
        "hessian_jacrev_jacrev" => many(|a| leaves(jacrev(jacrev(rosenbrock)).call(&a[0]))),
        "hessian_jacfwd_jacfwd" => many(|a| leaves(jacfwd(jacfwd(rosenbrock)).call(&a[0]))),
        "hessian_jacrev_jacfwd" => many(|a| leaves(jacrev(jacfwd(rosenbrock)).call(&a[0]))),
        "hessian_softmax_loss" => many(|a| leaves(hessian(|z: Array| z.logsumexp(..) - z.get(1)).call(&a[0]))),
        // The gradient with respect to one argument, differentiated with respect to the other.
        "hessian_two_arguments" => many(|a| {
            fn f(x: Array, y: Array) -> Array {
                (x * y.sin()).sum(..) * y.prod(..)
            }
            let (x, y) = (&a[0], &a[1]);
            let in_x = |y: Array| move |x: Array| f(x, y.clone());
            let in_y = |x: Array| move |y: Array| f(x.clone(), y);
            let dx = |y: Array| -> Result<Array> { jacrev(in_x(y)).call(x) };
            let dy = |x: Array| -> Result<Array> { jacrev(in_y(x)).call(y) };
            Ok(vec![
                hessian(in_x(y.clone())).call(x)?,
                jacfwd(dx).call(y)?,
                jacfwd(dy).call(x)?,
                hessian(in_y(x.clone())).call(y)?,
            ])
        }),
        "jacfwd_mlp" => many(|a| {
            let (w, b, x) = (a[0].clone(), a[1].clone(), a[2].clone());
            let in_w = |w: Array| mlp(w, b.clone(), x.clone());
            let in_b = |b: Array| mlp(w.clone(), b, x.clone());
            Ok(vec![jacfwd(in_w).call(&a[0])?, jacfwd(in_b).call(&a[1])?])
        }),
        "jacrev_mlp" => many(|a| {
            let (w, b, x) = (a[0].clone(), a[1].clone(), a[2].clone());
            let in_w = |w: Array| mlp(w, b.clone(), x.clone());
            let in_b = |b: Array| mlp(w.clone(), b, x.clone());
            Ok(vec![jacrev(in_w).call(&a[0])?, jacrev(in_b).call(&a[1])?])
        }),
        "hvp_forward_over_reverse" => many(|a| {
            fn slope(x: Array) -> Result<Array> {
                grad(rosenbrock).call(x)
            }
            Ok(vec![jvp::<(Array,), _>(slope, &a[0], &a[1])?.1])
        }),
        "hvp_reverse_over_reverse" => many(|a| {
            let v = a[1].clone();
            let f = move |x: Array| -> Result<Array> { Ok(grad(rosenbrock).call(x)?.dot(&v)) };
            leaves(grad(f).call(&a[0]))
        }),
        "hvp_reverse_over_forward" => many(|a| {
            let v = a[1].clone();
            let f = move |x: Array| -> Result<Array> { Ok(jvp::<(Array,), _>(rosenbrock, x, &v)?.1) };
            leaves(grad(f).call(&a[0]))
        }),
        _ => None,
    }
}

type Scalar = Rc<dyn Fn(Array) -> Result<Array>>;

/// The first derivatives of a function of a number.
fn derivatives(f: impl Fn(Array) -> Array + Clone + 'static, count: usize) -> Option<Fun> {
    many(move |a| {
        let f = f.clone();
        let mut g: Scalar = Rc::new(move |x| Ok(f(x)));
        let mut results = Vec::new();
        for _ in 0..count {
            let inner = g.clone();
            g = Rc::new(move |x| {
                let inner = inner.clone();
                grad(move |x: Array| inner(x)).call(x)
            });
            results.push(g(a[0].clone())?);
        }
        Ok(results)
    })
}

fn higher(name: &str) -> Option<Fun> {
    match name.strip_prefix("grads_of_")? {
        "tanh" => derivatives(|x| x.tanh(), 4),
        "sin" => derivatives(|x| x.sin(), 4),
        "x_to_5" => derivatives(|x| x.pow(5), 4),
        "log" => derivatives(|x| x.log(), 4),
        "logistic" => derivatives(|x| x.logistic(), 4),
        "sqrt" => derivatives(|x| x.sqrt(), 4),
        "reciprocal" => derivatives(|x| 1 / x, 4),
        "x_to_x" => derivatives(|x| x.pow(&x), 4),
        "erf" => derivatives(|x| x.erf(), 4),
        "atan2" => derivatives(|x| np::arctan2(&x, 2 * &x * &x), 4),
        _ => None,
    }
}

fn first_order(name: &str) -> Option<Fun> {
    // The names are in the generator of the reference cases, with the same functions in JAX.
    match name {
        "rosenbrock" => one(|x| rosenbrock(x.clone())),
        "grad_argnums" => many(|a| {
            fn f(w: Array, b: Array, x: Array) -> Array {
                mlp(w, b, x).square().sum(..)
            }
            leaves(grad(f).argnums((Arg::<2>, Arg::<0>)).call((&a[0], &a[1], &a[2])))
        }),
        "value_and_grad_has_aux" => many(|a| {
            fn f(w: Array, x: Array) -> (Array, Array) {
                let y = x.matmul(w);
                (y.sum(..), y.max(..))
            }
            leaves(value_and_grad(f).has_aux().call((&a[0], &a[1])))
        }),
        "per_example_gradients" => many(|a| {
            fn f(w: Array, b: Array, x: Array) -> Array {
                mlp(w, b, x).square().sum(..)
            }
            let gradients = grad(f).argnums((Arg::<0>, Arg::<1>));
            leaves(vmap(gradients).in_axes((None, None, 0)).call((&a[0], &a[1], &a[2])))
        }),
        "grad_of_vmap" => many(|a| {
            fn row(r: Array) -> Array {
                r.sin().dot(&r)
            }
            leaves(grad(|x: Array| -> Result<Array> { Ok(vmap(row).call(x)?.sum(..)) }).call(&a[0]))
        }),
        "vmap_of_vmap" => many(|a| {
            let inner = vmap(|x: Array, y: Array| x * y + 1).in_axes((None, 0));
            leaves(vmap(inner).in_axes((0, None)).call((&a[0], &a[1])))
        }),
        "vmap_out_axes" => {
            many(|a| leaves(vmap(|x: Array| (x.clone(), x * 2)).in_axes(1).out_axes((1, -1)).call(&a[0])))
        }
        "linearize" => many(|a| {
            let (_, linear) = linearize::<(Array,), _>(|x: Array| x.sin() * x.sum(..), &a[0])?;
            leaves(linear.call(&a[1]))
        }),
        "linear_transpose" => many(|a| {
            fn f(x: Array) -> Array {
                2 * x.flip(0) + x.sum(..)
            }
            let (_, pull_back) = vjp::<(Array,), _>(f, np::zeros_like(&a[0]))?;
            leaves(pull_back.call(&a[0]))
        }),
        "stop_gradient" => many(|a| leaves(grad(|x: Array| (&x * stop_gradient(x.clone())).sum(..)).call(&a[0]))),
        "checkpoint" => many(|a| leaves(value_and_grad(checkpoint(|x: Array| x.sin().sin().sum(..))).call(&a[0]))),
        "straight_through" => many(|a| {
            fn f(x: Array) -> Array {
                (&x + stop_gradient(x.round() - &x)).square().sum(..)
            }
            leaves(grad(f).call(&a[0]))
        }),
        "grad_of_gradient_descent" => many(|a| {
            fn f(lr: Array, x: Array) -> Result<Array> {
                let slope = grad(rosenbrock).call(&x)?;
                Ok(rosenbrock(x - lr * slope))
            }
            leaves(grad(f).argnums((Arg::<0>, Arg::<1>)).call((&a[0], &a[1])))
        }),
        _ => None,
    }
}

fn complex(name: &str) -> Option<Fun> {
    match name {
        "grad_abs_complex_square" => many(|a| leaves(grad(|z: Array| z.abs().square()).call(&a[0]))),
        "grad_real_of_complex" => many(|a| leaves(grad(|z: Array| z.pow(3).real()).call(&a[0]))),
        // The derivative of a holomorphic function is its gradient for the cotangent 1.
        "grad_holomorphic" => many(|a| {
            let (_, pull_back) = vjp::<(Array,), _>(|z: Array| z.sin() * z, &a[0])?;
            leaves(pull_back.call(np::complex(array(1.0f32), 0.0)))
        }),
        "grad_through_complex" => many(|a| {
            fn f(x: Array) -> Array {
                (np::complex(0.0, &x).exp() + &x).abs().sum(..)
            }
            leaves(grad(f).call(&a[0]))
        }),
        _ => None,
    }
}

// Rules of the user's own, each different from the true derivative.

fn tripled(x: Array) -> Result<Array> {
    custom_jvp(|x: Array| x.sin()).defjvp(|(x,): (Array,), (t,): (Array,)| (x.sin(), 3 * x.cos() * t)).call(x)
}

fn log1pexp(x: Array) -> Result<Array> {
    fn rule((x,): (Array,), (t,): (Array,)) -> Result<(Array, Array)> {
        Ok((log1pexp(x.clone())?, (1 - 1 / (1 + x.exp())) * t))
    }
    custom_jvp(|x: Array| (x.exp() + 1).log()).defjvp(rule).call(x)
}

fn doubled(x: Array, y: Array) -> Result<Array> {
    custom_vjp(|x: Array, y: Array| x.sin() * y)
        .defvjp(
            |x: Array, y: Array| (x.sin() * &y, (x.cos(), x.sin(), y)),
            |(cos, sin, y): (Array, Array, Array), ct: Array| (2 * cos * &ct * y, 5 * sin * ct),
        )
        .call((x, y))
}

/// The square root, by a loop that reverse mode does not see.
fn babylonian(a: Array) -> Result<Array> {
    fn root(a: Array) -> Result<Array> {
        fn f(x: &Array, a: &Array) -> Array {
            0.5 * (x + a / x)
        }
        fn far((x, y): (Array, Array)) -> Array {
            (x - y).abs().greater(1e-6)
        }
        Ok(while_loop(far, |(_, y)| (y.clone(), f(&y, &a)), (a.clone(), f(&a, &a)))?.1)
    }
    fn fwd(a: Array) -> Result<(Array, Array)> {
        let x = root(a)?;
        Ok((x.clone(), x))
    }
    custom_vjp(root).defvjp(fwd, |x: Array, ct: Array| (ct / (2 * x),)).call(a)
}

fn custom(name: &str) -> Option<Fun> {
    // The rules differ from the true derivatives, so that a test can tell whether a rule was used.
    match name {
        "custom_jvp" => many(|a| leaves(tripled(a[0].clone()))),
        "custom_jvp_grad_of_grad" => many(|a| {
            let x = &a[0];
            Ok(vec![grad(tripled).call(x)?, grad(grad(tripled)).call(x)?, grad(grad(grad(tripled))).call(x)?])
        }),
        "custom_jvp_nondiff" => many(|a| {
            fn f(x: Array) -> Array {
                x.exp()
            }
            let scaled = custom_jvp(f).defjvp(move |(x,): (Array,), (t,): (Array,)| (f(x), 10 * t));
            leaves(scaled.call(&a[0]))
        }),
        "custom_jvp_log1pexp" => many(|a| leaves(log1pexp(a[0].clone()))),
        "custom_vjp" => many(|a| leaves(doubled(a[0].clone(), a[1].clone()))),
        "custom_vjp_vmap_of_grad" => many(|a| {
            let f = |x: Array, y: Array| -> Result<Array> { Ok(doubled(x, y)?.sum(..)) };
            let gradients = grad(f).argnums((Arg::<0>, Arg::<1>));
            leaves(vmap(gradients).in_axes((0, None)).call((&a[0], &a[1])))
        }),
        "custom_vjp_grad_of_grad" => many(|a| {
            let f = |x: Array| doubled(x.clone(), x);
            Ok(vec![grad(f).call(&a[0])?, grad(grad(f)).call(&a[0])?])
        }),
        "custom_vjp_clip_gradient" => many(|a| {
            let clip = custom_vjp(|x: Array| x).defvjp(|x: Array| (x, ()), |(), ct: Array| (ct.clip(-0.5, 0.5),));
            leaves(clip.call(&a[0]))
        }),
        "custom_vjp_fixed_point" => many(|a| leaves(babylonian(a[0].clone()))),
        "custom_vjp_in_scan" => many(|a| {
            fn step(c: Array, v: Array) -> Result<(Array, ())> {
                Ok((doubled(c, v)?, ()))
            }
            let f = |x: Array| -> Result<Array> { Ok(scan(step, x.get(0), x)?.0) };
            leaves(grad(f).call(&a[0]))
        }),
        _ => None,
    }
}
