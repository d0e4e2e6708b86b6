//! Steps that transform a smaller random program: derivatives, loops, branches, batches, custom rules. `tools/fuzz/nests.py`
//! has the same functions in JAX.

use std::sync::Arc;

use serde_json::Value;
use shardax::numpy as np;
use shardax::prelude::*;
use shardax::{CheckpointPolicy, MapOptions, lax};

use super::program::{Step, put, run_steps};
use crate::golden_support::read::ints;
use crate::golden_support::{Case, Fun, many};

const MAX_COUNT: i32 = 4;

/// The smaller program.
struct Body {
    steps: Vec<Step>,
    results: Vec<usize>,
}

impl Body {
    fn new(json: &Value) -> Body {
        let counts = ints(&json["counts"]);
        let steps = json["steps"].as_array().into_iter().flatten().zip(counts);
        Body { steps: steps.map(|(step, n)| Step::new(step, n as usize)).collect(), results: numbers(&json["results"]) }
    }

    fn call(&self, xs: &[Array]) -> Result<Vec<Array>> {
        run_steps(&self.steps, &self.results, xs)
    }
}

/// A transformation and its bodies. Operands are the arguments, then what each body captures.
struct Nest {
    options: Value,
    bodies: Vec<Body>,
    args: usize,
    captures: Vec<usize>,
}

fn numbers(list: &Value) -> Vec<usize> {
    ints(list).into_iter().map(|i| i as usize).collect()
}

pub fn function(case: &Case) -> Option<Fun> {
    let options = case.meta["params"].clone();
    let bodies = options["bodies"].as_array()?.iter().map(Body::new).collect();
    let (args, captures) = (options["args"].as_u64()? as usize, numbers(&options["captures"]));
    let (nest, kind) = (Arc::new(Nest { options, bodies, args, captures }), case.op.clone());
    many(move |operands| call(&nest, &kind, operands))
}

fn call(nest: &Arc<Nest>, kind: &str, operands: &[Array]) -> Result<Vec<Array>> {
    match kind {
        "grad" | "jvp" | "linearize" | "vjp" => nest.first_order(kind, operands),
        "jacfwd" | "jacrev" | "hessian" | "jacfwd_jacrev" | "jacrev_jacfwd" => nest.jacobian(kind, operands),
        "custom_jvp" | "custom_vjp" => ruled(nest, kind, operands),
        "cond" | "switch" => nest.conditional(kind, operands),
        "scan" => nest.scan(operands),
        "while" | "fori" => nest.looped(kind, operands),
        _ => nest.mapped(kind, operands),
    }
}

/// Weights of elements.
fn pattern(shape: &[usize], dtype: DType) -> Array {
    let weights = (0..shape.iter().product()).map(|i: usize| ((i % 5) as f32 - 1.5) / 2.0).collect::<Vec<f32>>();
    Array::from_vec(weights, shape).expect("a shape").astype(dtype)
}

/// A value of the type of `like` that depends on both.
fn fit(y: &Array, like: &Array) -> Array {
    let dtype = like.dtype();
    if y.shape() == like.shape() && y.dtype() == dtype {
        y.clone()
    } else if dtype == DType::Bool {
        like ^ y.not_equal(0).any(..)
    } else if dtype.is_inexact() {
        like / 2 + y.astype(dtype).sin().sum(..)
    } else {
        like + y.not_equal(0).astype(DType::I32).sum(..).astype(dtype)
    }
}

/// The number of positive elements.
fn positive(x: &Array) -> Array {
    let above = if x.dtype() == DType::Bool { x.clone() } else { x.greater(0) };
    above.astype(DType::I32).sum(..)
}

impl Nest {
    /// The body `k` of the arguments, with what it captures.
    fn body(&self, k: usize, operands: &[Array], xs: &[Array]) -> Result<Vec<Array>> {
        let start = self.args + self.captures[..k].iter().sum::<usize>();
        let captured = &operands[start..start + self.captures[k]];
        self.bodies[k].call(&[xs, captured].concat())
    }

    /// Returns the arguments of the derivative, and their positions.
    fn wrt(&self, operands: &[Array]) -> (Vec<usize>, Vec<Array>) {
        let wrt = numbers(&self.options["wrt"]);
        let xs = wrt.iter().map(|&i| operands[i].clone()).collect();
        (wrt, xs)
    }

    fn first_order(&self, kind: &str, operands: &[Array]) -> Result<Vec<Array>> {
        let (wrt, xs) = self.wrt(operands);
        let g = |chosen: Vec<Array>| self.body(0, operands, &put(&operands[..self.args], &wrt, chosen));
        let halves = xs.iter().map(|x| x / 2).collect::<Vec<_>>();
        let patterns = |ys: &[Array]| ys.iter().map(|y| pattern(y.shape(), y.dtype())).collect::<Vec<_>>();
        match kind {
            "grad" => {
                let dtype = if self.options["x64"] == true { DType::F64 } else { DType::F32 };
                let loss = |chosen: Vec<Array>| -> Result<Array> {
                    let terms = g(chosen)?.into_iter().map(|y| (y.astype(dtype) * pattern(y.shape(), dtype)).sum(..));
                    Ok(terms.reduce(|a, b| a + b).expect("a result"))
                };
                grad(loss).call(xs)
            }
            "jvp" => {
                let (outs, tangents) = jvp::<(Vec<Array>,), _>(g, xs, halves)?;
                Ok([outs, tangents].concat())
            }
            "linearize" => {
                let (outs, linear) = linearize::<(Vec<Array>,), _>(g, xs.clone())?;
                Ok([outs, linear.call(halves)?, linear.call(patterns(&xs))?].concat())
            }
            _ => {
                let (outs, pull) = vjp::<(Vec<Array>,), _>(g, xs)?;
                let cotangents = patterns(&outs);
                Ok([pull.call(outs)?.0, pull.call(cotangents)?.0].concat())
            }
        }
    }

    fn jacobian(&self, kind: &str, operands: &[Array]) -> Result<Vec<Array>> {
        let (wrt, xs) = self.wrt(operands);
        let f = |x: Array| -> Result<Array> {
            let chosen = [&[x], &xs[1..]].concat();
            Ok(self.body(0, operands, &put(&operands[..self.args], &wrt, chosen))?.swap_remove(0))
        };
        let x = xs[0].clone();
        let derivative = match kind {
            "jacfwd" => jacfwd(f).call(x)?,
            "jacrev" => jacrev(f).call(x)?,
            "hessian" => hessian(f).call(x)?,
            "jacfwd_jacrev" => jacfwd(jacrev(f)).call(x)?,
            _ => jacrev(jacfwd(f)).call(x)?,
        };
        Ok(vec![derivative])
    }

    fn scan(&self, operands: &[Array]) -> Result<Vec<Array>> {
        let options = &self.options;
        let number = |name: &str| options[name].as_u64().map(|n| n as usize);
        let carries = number("carries").expect("a number");
        let step = |carry: Vec<Array>, xs: Vec<Array>| -> Result<(Vec<Array>, Vec<Array>)> {
            let mut outs = self.body(0, operands, &[carry.clone(), xs].concat())?;
            let ys = outs.split_off(carries);
            Ok((outs.iter().zip(&carry).map(|(y, c)| fit(y, c)).collect(), ys))
        };
        let loops = ScanOptions::new().reverse(options["reverse"] == true).unroll(number("unroll").expect("a number"));
        let init = operands[..carries].to_vec();
        let loops = number("length").map_or(loops, |n| loops.length(n));
        let (carry, ys) = loops.scan(step, init, operands[carries..self.args].to_vec())?;
        Ok([carry, ys].concat())
    }

    fn looped(&self, kind: &str, operands: &[Array]) -> Result<Vec<Array>> {
        let args = operands[..self.args].to_vec();
        let count = match self.options["count"].as_i64() {
            Some(n) => array(n as i32),
            None => positive(&operands[0]) % MAX_COUNT,
        };
        let next = |xs: &[Array], carry: &[Array]| -> Result<Vec<Array>> {
            Ok(self.body(0, operands, xs)?.iter().zip(carry).map(|(y, c)| fit(y, c)).collect())
        };
        if kind == "while" {
            let step = |(i, carry): (Array, Vec<Array>)| -> Result<(Array, Vec<Array>)> {
                let next = next(&carry, &carry)?;
                Ok((i + 1, next))
            };
            return Ok(while_loop(|(i, _): (Array, Vec<Array>)| i.less(&count), step, (array(0), args))?.1);
        }
        let start = self.options["start"].as_i64().expect("a number") as i32;
        let step = |i: Array, carry: Vec<Array>| next(&[&[i], carry.as_slice()].concat(), &carry);
        match self.options["count"].as_i64() {
            Some(n) => fori_loop(start, n as i32, step, args),
            None => fori_loop(start, count, step, args),
        }
    }

    fn conditional(&self, kind: &str, operands: &[Array]) -> Result<Vec<Array>> {
        let args = operands[..self.args].to_vec();
        let types = eval_shape::<(Vec<Array>,), _, _>(|xs: Vec<Array>| self.body(0, operands, &xs), args.clone())?;
        let branch = |k: usize| {
            let types = &types;
            move |xs: Vec<Array>| -> Result<Vec<Array>> {
                let outs = self.body(k, operands, &xs)?;
                let like = |t: &Array| np::ones_dtype(t.shape(), t.dtype());
                Ok(types.iter().enumerate().map(|(i, t)| fit(&outs[i.min(outs.len() - 1)], &like(t))).collect())
            }
        };
        let chosen = positive(&operands[0]);
        if kind == "cond" {
            return cond((chosen % 2).equal(1), branch(0), branch(1), args);
        }
        switch(chosen % 5 - 1, [branch(0), branch(1), branch(2)], args)
    }

    fn mapped(&self, kind: &str, operands: &[Array]) -> Result<Vec<Array>> {
        let options = &self.options;
        let args = operands[..self.args].to_vec();
        let f = |xs: Vec<Array>| self.body(0, operands, &xs);
        let axes = |name: &str| -> Vec<Option<i32>> {
            options[name].as_array().into_iter().flatten().map(|a| a.as_i64().map(|a| a as i32)).collect()
        };
        match kind {
            "vmap" => vmap(f).in_axes((axes("in_axes"),)).out_axes(axes("out_axes")).call(args),
            "checkpoint" => {
                let policy = match options["policy"].as_str() {
                    Some("everything_saveable") => CheckpointPolicy::EverythingSaveable,
                    Some("dots_saveable") => CheckpointPolicy::DotsSaveable,
                    Some("dots_with_no_batch_dims_saveable") => CheckpointPolicy::DotsWithNoBatchDimsSaveable,
                    _ => CheckpointPolicy::NothingSaveable,
                };
                checkpoint(f).policy(policy).prevent_cse(options["prevent_cse"] == true).call(args)
            }
            "jit" => jit(f).call(args),
            "stop_gradient" => {
                let stopped = |y: Array| {
                    if y.dtype().is_inexact() { &y * stop_gradient(y.clone()) } else { stop_gradient(y) }
                };
                Ok(f(args)?.into_iter().map(stopped).collect())
            }
            "map" => match options["batch_size"].as_u64() {
                Some(n) => MapOptions::new().batch_size(n as usize).map(f, args),
                None => lax::map(f, args),
            },
            kind => panic!("no transformation {kind}"),
        }
    }
}

/// A custom rule of the floating point operands; the body captures the others.
fn ruled(nest: &Arc<Nest>, kind: &str, operands: &[Array]) -> Result<Vec<Array>> {
    let chosen: Vec<usize> = (0..operands.len()).filter(|&i| operands[i].dtype().is_inexact()).collect();
    let floats: Vec<Array> = chosen.iter().map(|&i| operands[i].clone()).collect();
    let (nest, operands) = (nest.clone(), operands.to_vec());
    let f = move |floats: Vec<Array>| -> Result<Vec<Array>> {
        let xs = put(&operands, &chosen, floats);
        nest.body(0, &xs, &xs[..nest.args])
    };
    if kind == "custom_jvp" {
        let inner = f.clone();
        let rule = move |(xs,): (Vec<Array>,), (ts,): (Vec<Array>,)| -> Result<(Vec<Array>, Vec<Array>)> {
            let (outs, tangents) = jvp::<(Vec<Array>,), _>(&inner, xs, ts)?;
            Ok((outs, tangents.iter().map(|t| t * 2).collect()))
        };
        return custom_jvp(f).defjvp(rule).call(floats);
    }
    let (forward, inner) = (f.clone(), f.clone());
    let fwd = move |xs: Vec<Array>| -> Result<(Vec<Array>, Vec<Array>)> { Ok((forward(xs.clone())?, xs)) };
    let bwd = move |xs: Vec<Array>, cts: Vec<Array>| -> Result<(Vec<Array>,)> {
        let (_, pull) = vjp::<(Vec<Array>,), _>(&inner, xs)?;
        Ok((pull.call(cts)?.0.iter().map(|x| x * 3).collect(),))
    };
    custom_vjp(f).defvjp(fwd, bwd).call(floats)
}
