//! A program as Rust source that a user could paste.

use std::fmt::Write;
use std::panic::Location;

use serde_json::Value;
use shardax::DType;
use shardax::dtype::Scalar;

use crate::golden_support::{Host, made_at};
use crate::program::{Program, Step};

/// The program: its inputs, its steps as the golden tests' table has them, and its mode.
pub fn rust(program: &Program) -> String {
    let mut text = String::from(
        "use shardax::prelude::*;\nuse shardax::{lax, linalg, nn, numpy as np};\n\nfn main() -> Result<()> {\n",
    );
    let count = program.inputs();
    for kind in ["in", "ct", "tan"] {
        for i in 0..program.case.count("outs").max(program.case.count("ins")) {
            if let Some(host) = program.case.host(&format!("{kind}/{i}")) {
                let name = if kind == "in" { "v" } else { kind };
                let _ = writeln!(text, "    let {name}{i} = {};", array(host));
            }
        }
    }
    let arguments = (0..count).map(|i| format!("v{i}")).collect::<Vec<_>>().join(", ");
    let _ = writeln!(text, "    let f = |xs: Vec<Array>| -> Result<Vec<Array>> {{");
    let _ = writeln!(text, "        let [{arguments}] = xs.try_into().expect(\"{count} inputs\");");
    let mut next = count;
    for step in &program.steps {
        text += &of_step(step, next);
        next += step.count;
    }
    let results = program.results.iter().map(|i| format!("v{i}")).collect::<Vec<_>>().join(", ");
    let _ = writeln!(text, "        Ok(vec![{results}])\n    }};");
    let meta = &program.case.meta;
    let wrt = &meta["wrt"];
    let what = match program.mode {
        "eager" => "f(xs)?".to_owned(),
        "jit" => "jit(f).call(xs)?".to_owned(),
        "vmap" => format!("vmap(f).in_axes((vec!{},)).call(xs)?", options(&meta["axes"])),
        "jvp" => format!("// jvp(f) by inputs {wrt}, along the tangents `tan`"),
        "grad" => format!("// grad of the sum of results times `ct`, by inputs {wrt}"),
        "hvp" => format!("// jvp, along `tan`, of grad of the sum of results times `ct`, by inputs {wrt}"),
        "explicit" => format!("// over explicit axes {}, with arguments of the specs {}", meta["mesh"], meta["specs"]),
        mode => {
            let mapped = match mode {
                "pmap" => format!("pmap(f).axis_name(\"i\").in_axes((vec!{},)).call(xs)?", options(&meta["axes"])),
                _ => format!(
                    "shard_map(f, mesh {}).in_specs({}).check_vma({}){}",
                    meta["mesh"],
                    meta["specs"],
                    meta["check_vma"],
                    if meta["jit"] == true { ", in jit" } else { "" }
                ),
            };
            let of = if wrt.is_null() {
                String::new()
            } else {
                format!("grad by {wrt} of the sum of results times `ct` of ")
            };
            format!("// {of}{mapped}")
        }
    };
    let _ = writeln!(text, "    let xs = vec![{arguments}];");
    let _ = if what.starts_with("//") {
        writeln!(text, "    {what}")
    } else {
        writeln!(text, "    println!(\"{{:?}}\", {what});")
    };
    text + "    Ok(())\n}\n"
}

fn options(axes: &Value) -> String {
    let each = axes.as_array().into_iter().flatten().map(|a| match a.as_i64() {
        Some(axis) => format!("Some({axis})"),
        None => "None".to_owned(),
    });
    format!("[{}]", each.collect::<Vec<_>>().join(", "))
}

fn of_step(step: &Step, first: usize) -> String {
    let operands: Vec<String> = step.operands.iter().map(|i| format!("v{i}")).collect();
    let names = (first..first + step.count).map(|i| format!("v{i}")).collect::<Vec<_>>().join(", ");
    let params = step.case().meta["params"].as_object().cloned().unwrap_or_default();
    let mut text = format!("        // {}, as in the golden case {}\n", step.name(), step.case().name);
    let doc = step.case().doc();
    if !doc.is_empty() {
        let _ = writeln!(text, "        // {doc}");
    }
    for (name, value) in &params {
        let _ = writeln!(text, "        let {name} = {};", value.to_string().replace("null", "None"));
    }
    // The types do not matter for where the function is written; it may want operands though.
    let zeros: Vec<shardax::Array> = step.operands.iter().map(|_| shardax::numpy::zeros(())).collect();
    step.function(&zeros);
    match made_at().and_then(text_at) {
        Some((kind, body)) if kind != "many" => {
            let refs = operands.iter().map(|v| format!("&{v}")).collect::<Vec<_>>().join(", ");
            let _ = writeln!(text, "        let {names} = ({})({refs});", typed(&body));
        }
        Some((_, body)) => {
            let clones = operands.iter().map(|v| format!("{v}.clone()")).collect::<Vec<_>>().join(", ");
            let body = typed(&body).replacen(": &Array", ": &[Array]", 1);
            let _ = writeln!(text, "        let [{names}] = ({body})(&[{clones}])?.try_into().expect(\"results\");");
        }
        None => {
            let _ = writeln!(text, "        let [{names}] = {}({});", step.name(), operands.join(", "));
        }
    }
    text
}

/// `move |x, y| x + y` as `|x: &Array, y: &Array| x + y`.
fn typed(closure: &str) -> String {
    let closure = closure.strip_prefix("move ").unwrap_or(closure);
    let Some((names, body)) = closure.strip_prefix('|').and_then(|c| c.split_once('|')) else {
        return closure.to_owned();
    };
    let names: Vec<String> = names.split(',').map(|n| format!("{}: &Array", n.trim())).collect();
    format!("|{}|{body}", names.join(", "))
}

/// The entry of the table at this place: `one`, `two`, `three` or `many`, and the function it is called with.
fn text_at(place: &'static Location<'static>) -> Option<(String, String)> {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let file = std::fs::read_to_string(root.join(place.file())).ok()?;
    let lines: Vec<&str> = file.lines().skip(place.line() as usize - 1).collect();
    let text = lines.join("\n").get(place.column() as usize - 1..)?.to_owned();
    let (kind, rest) = text.split_once('(')?;
    let mut depth = 1;
    let end = rest.find(|c| {
        depth += match c {
            '(' => 1,
            ')' => -1,
            _ => 0,
        };
        depth == 0
    })?;
    ["one", "two", "three", "many"].contains(&kind).then(|| (kind.to_owned(), rest[..end].trim().to_owned()))
}

/// A number as Rust code.
fn number(v: f64) -> String {
    match v {
        v if v.is_nan() => "f64::NAN".to_owned(),
        v if v.is_infinite() => format!("{}f64::INFINITY", if v < 0.0 { "-" } else { "" }),
        v => format!("{v:?}"),
    }
}

fn array(host: &Host) -> String {
    fn list(part: &dyn Fn(&Scalar) -> String, host: &Host) -> String {
        host.scalars().iter().map(part).collect::<Vec<_>>().join(", ")
    }
    let shape = format!("{:?}", host.shape);
    let real = |part: &dyn Fn(&Scalar) -> f64, dtype: DType| {
        format!(
            "Array::from_vec(vec![{}] as Vec<f64>, &{shape})?.astype(DType::{dtype:?})",
            list(&|s| number(part(s)), host)
        )
    };
    match host.dtype {
        // Rust has no literals of complex numbers, so both parts are arrays.
        d if d.is_complex() => {
            let part = d.real();
            format!("np::complex({}, {})", real(&|s| s.to_f64(), part), real(&|s| s.imag(), part))
        }
        d if d.is_inexact() => real(&|s| s.to_f64(), d),
        DType::Bool => {
            format!("Array::from_vec(vec![{}], &{shape})?", list(&|s| (s.to_f64() != 0.0).to_string(), host))
        }
        d => {
            fn whole(s: &Scalar) -> String {
                match s {
                    Scalar::Int(i) => i.to_string(),
                    other => format!("{other:?}"),
                }
            }
            format!("Array::from_vec(vec![{}] as Vec<{}>, &{shape})?", list(&whole, host), d.short())
        }
    }
}
