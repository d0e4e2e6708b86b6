//! Comparison with reference values from JAX; their form is described in `tools/golden/README.md`.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use shardax::prelude::*;
use shardax::{Error, ErrorKind};

/// The cases of one family.
pub struct Golden {
    bytes: Vec<u8>,
    cases: BTreeMap<String, Value>,
}

/// One case: what was called, on what, and what JAX returned.
pub struct Case<'a> {
    pub name: &'a str,
    pub op: &'a str,
    meta: &'a Value,
    tensors: &'a SafeTensors<'a>,
}

fn fail(message: String) -> Error {
    Error::new(ErrorKind::Value, message)
}

/// The dtype with this short name, as case parameters have them.
pub fn dtype(short: &str) -> DType {
    DType::ALL.into_iter().find(|d| d.short() == short).unwrap_or_else(|| panic!("no dtype is called {short:?}"))
}

impl Golden {
    pub fn open(family: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/{family}.safetensors"));
        let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let (_, header) = SafeTensors::read_metadata(&bytes).expect("a safetensors file");
        let metadata = header.metadata().clone().expect("case descriptions");
        let cases = metadata.into_iter().map(|(k, v)| (k, serde_json::from_str(&v).expect("JSON"))).collect();
        Golden { bytes, cases }
    }

    /// Runs `check` on every case that `select` takes, and fails with all that went wrong. There must be some.
    pub fn each(&self, select: impl Fn(&Case<'_>) -> bool, check: impl Fn(&Case<'_>) -> Result<()>) {
        let tensors = SafeTensors::deserialize(&self.bytes).expect("tensors");
        let mut failures = Vec::new();
        let mut count = 0;
        for (name, meta) in &self.cases {
            let case = Case { name, op: meta["op"].as_str().expect("op"), meta, tensors: &tensors };
            if !select(&case) {
                continue;
            }
            count += 1;
            if let Err(e) = check(&case) {
                failures.push(format!("{name}: {e}"));
            }
        }
        assert!(count > 0, "no case was selected");
        assert!(failures.is_empty(), "{} of {count} cases differ:\n{}", failures.len(), failures.join("\n"));
    }
}

impl Case<'_> {
    /// A parameter; `Null` where there is none.
    pub fn param(&self, name: &str) -> &Value {
        &self.meta["params"][name]
    }

    /// A parameter that is a list of sizes.
    pub fn sizes(&self, name: &str) -> Option<Vec<usize>> {
        let list = self.param(name).as_array()?;
        Some(list.iter().map(|v| v.as_u64().expect("a size") as usize).collect())
    }

    pub fn number(&self, name: &str) -> Option<f64> {
        self.param(name).as_f64()
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        self.param(name).as_str()
    }

    /// The tensor with this key, as an array.
    pub fn tensor(&self, key: &str) -> Option<Array> {
        let view = self.tensors.tensor(&format!("{}/{key}", self.name)).ok()?;
        let pairs = self.meta["complex"].as_array().is_some_and(|keys| keys.iter().any(|k| k == key));
        let dtype = match view.dtype() {
            Dtype::BOOL => DType::Bool,
            Dtype::I8 => DType::I8,
            Dtype::I16 => DType::I16,
            Dtype::I32 => DType::I32,
            Dtype::I64 => DType::I64,
            Dtype::U8 => DType::U8,
            Dtype::U16 => DType::U16,
            Dtype::U32 => DType::U32,
            Dtype::U64 => DType::U64,
            Dtype::F16 => DType::F16,
            Dtype::BF16 => DType::Bf16,
            Dtype::F32 if pairs => DType::Complex64,
            Dtype::F32 => DType::F32,
            Dtype::F64 if pairs => DType::Complex128,
            Dtype::F64 => DType::F64,
            other => panic!("{}/{key} has dtype {other:?}", self.name),
        };
        let shape = if pairs { &view.shape()[..view.shape().len() - 1] } else { view.shape() };
        Some(Array::from_bytes(view.data(), dtype, shape).expect("an array"))
    }

    fn required(&self, key: &str) -> Result<Array> {
        self.tensor(key).ok_or_else(|| fail(format!("there is no tensor {key}")))
    }

    fn indices(&self, field: &str) -> Vec<usize> {
        let list = self.meta[field].as_array();
        list.map(|l| l.iter().map(|v| v.as_u64().expect("an index") as usize).collect()).unwrap_or_default()
    }

    fn count(&self, field: &str) -> usize {
        self.meta[field].as_u64().expect("a count") as usize
    }

    pub fn args(&self) -> Result<Vec<Array>> {
        (0..self.count("ins")).map(|i| self.required(&format!("in/{i}"))).collect()
    }

    /// Compares `got` with the tensor called `key`: dtype, shape and values within the case's tolerance.
    pub fn compare(&self, key: &str, got: &Array, tol: f64) -> Result<()> {
        got.check()?;
        let want = self.required(key)?;
        if (got.dtype(), got.shape()) != (want.dtype(), want.shape()) {
            return Err(fail(format!("{key} is {}, should be {}", got.type_name(), want.type_name())));
        }
        if got.dtype().is_complex() {
            close(key, &real(got), &real(&want), tol)?;
            return close(key, &imag(got), &imag(&want), tol);
        }
        close(key, got, &want, tol)
    }

    /// Compares `f` with the case: results, and where the case has them vjp, jvp and batches. All of it compiled.
    pub fn check(&self, f: impl Fn(&[Array]) -> Result<Vec<Array>>) -> Result<()> {
        let args = self.args()?;
        let tol = self.meta["tol"].as_f64().unwrap_or(0.0);
        let grad_tol = self.meta["grad_tol"].as_f64().unwrap_or(tol);
        let compiled = jit(|args: Vec<Array>| f(&args));
        let outs = compiled.call(&args)?;
        if outs.len() != self.count("outs") {
            return Err(fail(format!("{} results, should be {}", outs.len(), self.count("outs"))));
        }
        for (i, out) in outs.iter().enumerate() {
            self.compare(&format!("out/{i}"), out, tol)?;
        }
        self.derivatives(&args, &f, grad_tol).map_err(|e| e.context("derivative"))?;
        self.batches(&args, &f, tol).map_err(|e| e.context("batch"))
    }

    fn derivatives(&self, args: &[Array], f: &impl Fn(&[Array]) -> Result<Vec<Array>>, tol: f64) -> Result<()> {
        let (argnums, outnums) = (self.indices("argnums_float"), self.indices("outs_float"));
        let differentiable = |floats: Vec<Array>| -> Result<Vec<Array>> {
            let mut all = args.to_vec();
            argnums.iter().zip(floats).for_each(|(&i, x)| all[i] = x);
            let outs = f(&all)?;
            Ok(outnums.iter().map(|&i| outs[i].clone()).collect())
        };
        let primals: Vec<Array> = argnums.iter().map(|&i| args[i].clone()).collect();
        let all = |kind: &str, numbers: &[usize]| -> Option<Vec<Array>> {
            let found = numbers.iter().map(|i| self.tensor(&format!("{kind}/{i}"))).collect::<Option<Vec<_>>>();
            found.filter(|l| !l.is_empty())
        };
        if let Some(cts) = all("ct", &outnums) {
            let pull = |primals: Vec<Array>, cts: Vec<Array>| -> Result<Vec<Array>> {
                Ok(vjp(differentiable, primals)?.1.call(cts)?.0)
            };
            let cts = jit(pull).call((primals.clone(), cts))?;
            for (i, ct) in argnums.iter().zip(&cts) {
                self.compare(&format!("vjp/{i}"), ct, tol)?;
            }
        }
        if let Some(tangents) = all("tan", &argnums) {
            let push =
                |primals: Vec<Array>, ts: Vec<Array>| -> Result<Vec<Array>> { Ok(jvp(differentiable, primals, ts)?.1) };
            let tangents = jit(push).call((primals, tangents))?;
            for (i, t) in outnums.iter().zip(&tangents) {
                self.compare(&format!("jvp/{i}"), t, tol)?;
            }
        }
        Ok(())
    }

    fn batches(&self, args: &[Array], f: &impl Fn(&[Array]) -> Result<Vec<Array>>, tol: f64) -> Result<()> {
        for v in 0.. {
            let prefix = if v == 0 { "batch".to_owned() } else { format!("batch{v}") };
            let Some(axes) = self.meta[format!("{prefix}_in_axes")].as_array() else { break };
            let axes: Vec<Option<i32>> = axes.iter().map(|a| a.as_i64().map(|a| a as i32)).collect();
            let args: Vec<Array> = (0..args.len())
                .map(|i| self.tensor(&format!("{prefix}/in/{i}")).unwrap_or_else(|| args[i].clone()))
                .collect();
            let batched = vmap(|args: Vec<Array>| f(&args)).in_axes((axes,));
            for (i, out) in jit(batched).call(&args)?.iter().enumerate() {
                self.compare(&format!("{prefix}/out/{i}"), out, tol)?;
            }
        }
        Ok(())
    }
}

/// `|got - want| <= tol * (1 + |want|)`; NaN equals NaN, and infinities equal themselves.
fn close(key: &str, got: &Array, want: &Array, tol: f64) -> Result<()> {
    let (got, want) = (got.to_f64_vec()?, want.to_f64_vec()?);
    let same = |g: f64, w: f64| g == w || (g.is_nan() && w.is_nan()) || (g - w).abs() <= tol * (1.0 + w.abs());
    match got.iter().zip(&want).position(|(&g, &w)| !same(g, w)) {
        None => Ok(()),
        Some(i) => Err(fail(format!(
            "{key} differs at element {i} of {}: {} should be {} (tolerance {tol})",
            got.len(),
            got[i],
            want[i]
        ))),
    }
}
