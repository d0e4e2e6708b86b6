//! A random program: its steps, from the operations of the golden tests, and what each mode makes of them.

use std::collections::BTreeMap;

use serde_json::Value;
use shardax::prelude::*;
use shardax::shape::AxisName;
use shardax::sharding::DimSpec;
use shardax::{Error, ErrorKind};

use super::{collectives, nests};
use crate::golden_support::read::ints;
use crate::golden_support::{self, Case, Fun, Host};

/// One operation and which values it takes. Values are numbered: inputs first, then the results of each step.
pub struct Step {
    case: Case,
    pub operands: Vec<usize>,
    /// The number of its results.
    pub count: usize,
}

pub struct Program<'a> {
    pub case: &'a Case,
    pub mode: &'a str,
    pub steps: Vec<Step>,
    /// The values that are the program's results.
    pub results: Vec<usize>,
    /// The inputs that it is differentiated by; none where it is not.
    wrt: Vec<usize>,
}

impl Step {
    pub fn new(json: &Value, count: usize) -> Step {
        fn text(v: &Value) -> String {
            v.as_str().unwrap_or_default().to_owned()
        }
        let options = &json[3];
        let op = text(&json[1]);
        let name = options["name"].as_str().map_or_else(|| op.clone(), str::to_owned);
        let known = FAMILIES.iter().map(|(name, _)| *name).chain(["nest"]).find(|f| json[0] == **f);
        let family = known.unwrap_or("spmd");
        let case = Case { family, name, op, meta: options.clone(), tensors: BTreeMap::new() };
        Step { case, operands: ints(&json[2]).into_iter().map(|i| i as usize).collect(), count }
    }

    /// `binary/add`.
    pub fn name(&self) -> String {
        format!("{}/{}", self.case.family, self.case.op)
    }

    pub fn case(&self) -> &Case {
        &self.case
    }

    /// The function. A few families choose it by the types of its operands.
    pub fn function(&self, operands: &[Array]) -> Option<Fun> {
        fn host(dtype: DType, shape: &[usize]) -> Host {
            Host { dtype, shape: shape.to_vec(), bytes: Vec::new() }
        }
        let mut tensors: BTreeMap<String, Host> =
            operands.iter().enumerate().map(|(i, x)| (format!("in/{i}"), host(x.dtype(), x.shape()))).collect();
        // The golden cases of `div` are the division that rounds where their results are integers.
        let rounds = self.case.name == "div_i32";
        tensors.insert("out/0".to_owned(), host(if rounds { DType::I32 } else { DType::F32 }, &[]));
        let mut meta = self.case.meta.clone();
        meta["ins"] = Value::from(operands.len());
        let case = Case { meta, tensors, name: self.case.name.clone(), op: self.case.op.clone(), ..self.case };
        match FAMILIES.iter().find(|(name, _)| *name == case.family) {
            Some((_, function)) => function(&case),
            None if case.family == "nest" => nests::function(&case),
            None => collectives::function(&case),
        }
    }
}

macro_rules! families {
    ($($name:ident)*) => {
        const FAMILIES: &[(&str, fn(&Case) -> Option<Fun>)] =
            &[$((stringify!($name), golden_support::$name::function)),*];
    };
}

families! { unary binary select convert reduce dot shape sort index conv window control transform nn random linalg }

impl<'a> Program<'a> {
    pub fn new(case: &'a Case) -> Program<'a> {
        let counts = ints(&case.meta["counts"]);
        let steps = case.meta["steps"].as_array().into_iter().flatten().enumerate();
        let numbers = |name: &str| ints(&case.meta[name]).into_iter().map(|i| i as usize).collect();
        Program {
            case,
            mode: &case.op,
            steps: steps.map(|(i, json)| Step::new(json, counts.get(i).map_or(1, |n| *n as usize))).collect(),
            results: numbers("results"),
            wrt: numbers("wrt"),
        }
    }

    pub fn inputs(&self) -> usize {
        self.case.count("ins")
    }

    /// Returns true if it runs on several devices, and so takes no part in programs compiled together.
    pub fn alone(&self) -> bool {
        matches!(self.mode, "eager" | "pmap")
            || (self.mode == "shard_map" && !self.case.meta["jit"].as_bool().unwrap_or(true))
    }

    /// The arguments of the call: inputs, weights of the results, tangents.
    pub fn arguments(&self) -> Vec<Array> {
        ["in", "ct", "tan"].iter().flat_map(|kind| self.hosts(kind)).map(|(_, host)| host.array()).collect()
    }

    fn hosts(&self, kind: &str) -> Vec<(usize, &'a Host)> {
        let most = self.case.count("outs").max(self.case.count("ins"));
        (0..most).filter_map(|i| Some((i, self.case.host(&format!("{kind}/{i}"))?))).collect()
    }

    /// JAX's results by their number, each with its tolerance.
    pub fn wanted(&self) -> Vec<(usize, &'a Host, f64)> {
        let tol = |i: usize| self.case.meta["tols"][i.to_string()].as_f64().unwrap_or(0.0);
        self.hosts("out").into_iter().map(|(i, host)| (i, host, tol(i))).collect()
    }

    /// The step that made this value.
    pub fn owner(&self, value: usize) -> Option<&Step> {
        let mut next = self.inputs();
        self.steps.iter().find(|step| {
            next += step.count;
            value < next && value + step.count >= next
        })
    }

    /// Returns the operations that may be wrong if result `k` differs. For a derivative these are all operations.
    pub fn blamed(&self, k: usize) -> String {
        let owner = self.results.get(k).and_then(|v| self.owner(*v));
        match owner {
            Some(step) if self.wrt.is_empty() => step.name(),
            _ => self.steps.iter().map(Step::name).collect::<Vec<_>>().join(" "),
        }
    }

    /// The results of the steps.
    fn body(&self, xs: &[Array]) -> Result<Vec<Array>> {
        run_steps(&self.steps, &self.results, xs)
    }

    /// The program in its mode, of all its arguments.
    pub fn run(&self, args: &[Array]) -> Result<Vec<Array>> {
        self.run_recomputed(args, false)
    }

    /// The program in its mode; its derivatives recompute what the steps gave, if `recomputed`.
    pub fn run_recomputed(&self, args: &[Array], recomputed: bool) -> Result<Vec<Array>> {
        let body = |xs: &[Array]| {
            if recomputed { checkpoint(|xs: Vec<Array>| self.body(&xs)).call(xs.to_vec()) } else { self.body(xs) }
        };
        let (ins, more) = args.split_at(self.inputs());
        match self.mode {
            "vmap" => vmap(|xs: Vec<Array>| body(&xs)).in_axes((self.axes(),)).call(ins.to_vec()),
            "jvp" => {
                let f = |d: Vec<Array>| body(&put(ins, &self.wrt, d));
                let (outs, tangents) = jvp::<(Vec<Array>,), _>(f, pick(ins, &self.wrt), more.to_vec())?;
                Ok([outs, tangents].concat())
            }
            "grad" => self.gradient(&body, ins, more),
            "hvp" => {
                let (cts, tangents) = more.split_at(self.results.len());
                let slope = |d: Vec<Array>| self.gradient(&body, &put(ins, &self.wrt, d), cts);
                Ok(jvp::<(Vec<Array>,), _>(slope, pick(ins, &self.wrt), tangents.to_vec())?.1)
            }
            "explicit" if !self.wrt.is_empty() => self.gradient(&body, ins, more),
            "pmap" | "shard_map" if !self.wrt.is_empty() => self.gradient(&|xs| self.on_devices(xs), ins, more),
            "pmap" | "shard_map" => self.on_devices(ins),
            _ => body(ins),
        }
    }

    /// The gradient of the weighted sum of all results.
    fn gradient(&self, f: &dyn Fn(&[Array]) -> Result<Vec<Array>>, ins: &[Array], cts: &[Array]) -> Result<Vec<Array>> {
        let loss = |d: Vec<Array>| -> Result<Array> {
            let outs = f(&put(ins, &self.wrt, d))?;
            let terms = outs.iter().zip(cts).map(|(x, ct)| real(&(x.astype(ct.dtype()) * ct)).sum(..));
            Ok(terms.reduce(|a, b| a + b).expect("a result"))
        };
        grad(loss).call(pick(ins, &self.wrt))
    }

    fn axes(&self) -> Vec<Option<i32>> {
        self.case.meta["axes"].as_array().into_iter().flatten().map(|a| a.as_i64().map(|a| a as i32)).collect()
    }

    fn axis_sizes(&self) -> Vec<(AxisName, usize)> {
        let axis = |(name, size): (&String, &Value)| (AxisName::new(name), size.as_u64().unwrap_or(1) as usize);
        self.case.meta["mesh"].as_object().into_iter().flatten().map(axis).collect()
    }

    fn specs(&self, name: &str) -> Vec<PartitionSpec> {
        self.case.meta[name].as_array().into_iter().flatten().map(collectives::spec_of).collect()
    }

    /// The mesh of a program over axes of type `Explicit`.
    pub fn explicit_mesh(&self) -> Option<Mesh> {
        let sizes = Some(self.axis_sizes()).filter(|_| self.mode == "explicit")?;
        let types = vec![AxisType::Explicit; sizes.len()];
        Some(make_mesh(sizes).and_then(|mesh| mesh.with_axis_types(types)).expect("a mesh"))
    }

    /// The arguments with their shardings, where types have some.
    pub fn placed(&self) -> Result<Vec<Array>> {
        let arguments = self.arguments();
        let Some(mesh) = self.explicit_mesh() else { return Ok(arguments) };
        let specs = self.specs("specs");
        arguments.iter().zip(specs).map(|(x, spec)| device_put(x, &NamedSharding::new(&mesh, spec))).collect()
    }

    /// Fails where the types of the results have other shardings than JAX's.
    pub fn check_types(&self, made: &[Array]) -> Result<()> {
        for (k, (have, want)) in made.iter().zip(self.specs("types")).enumerate() {
            have.check()?;
            let aval = have.aval();
            let dims = (0..aval.rank()).map(|d| aval.sharding().map_or_else(Vec::new, |t| t.dims()[d].axes().to_vec()));
            if !dims.zip(0..).all(|(axes, d)| axes == want.axes(d)) {
                let what = format!("result {k} has the type {aval}, and JAX's has the spec {want}");
                return Err(Error::new(ErrorKind::Type, what));
            }
        }
        Ok(())
    }

    fn on_devices(&self, ins: &[Array]) -> Result<Vec<Array>> {
        if self.mode == "pmap" {
            return pmap(|xs: Vec<Array>| self.body(&xs)).axis_name("i").in_axes((self.axes(),)).call(ins.to_vec());
        }
        let meta = &self.case.meta;
        let (sizes, specs) = (self.axis_sizes(), self.specs("specs"));
        let all = PartitionSpec::new([DimSpec::Axes(sizes.iter().map(|(name, _)| *name).collect())]);
        // Every device's results, one after another.
        let body =
            |xs: Vec<Array>| -> Result<Vec<Array>> { Ok(self.body(&xs)?.iter().map(|y| y.expand_dims(0)).collect()) };
        let mapped = shard_map(body, &make_mesh(sizes)?).in_specs((specs,)).out_specs(all);
        mapped.check_vma(meta["check_vma"].as_bool().unwrap_or(true)).call(ins.to_vec())
    }
}

/// Applies the steps, and returns these values.
pub fn run_steps(steps: &[Step], results: &[usize], xs: &[Array]) -> Result<Vec<Array>> {
    let mut values = xs.to_vec();
    for step in steps {
        let operands: Vec<Array> = step.operands.iter().map(|&i| values[i].clone()).collect();
        let f = step.function(&operands).unwrap_or_else(|| panic!("no function for {}", step.name()));
        let outputs = f(&operands)?;
        assert_eq!(outputs.len(), step.count, "results of {}", step.name());
        values.extend(outputs);
    }
    Ok(results.iter().map(|&i| values[i].clone()).collect())
}

fn pick(xs: &[Array], at: &[usize]) -> Vec<Array> {
    at.iter().map(|&i| xs[i].clone()).collect()
}

pub fn put(xs: &[Array], at: &[usize], values: Vec<Array>) -> Vec<Array> {
    let mut xs = xs.to_vec();
    for (&i, x) in at.iter().zip(values) {
        xs[i] = x;
    }
    xs
}
