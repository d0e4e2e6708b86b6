//! Reports of steps on eight simulated devices, compared with theory and with the compiler's figures.

#[path = "../../shardax/tests/common/quick.rs"]
#[allow(dead_code)]
mod quick;

use shardax::prelude::*;
use shardax_plan::models::{self, Sizes};
use shardax_plan::{Candidate, Holder, Link, Plan, Remat, Report, Search, Setup, Target};

/// A target whose programs are compiled quickly, since they do not run: only their figures are read.
fn target(name: &str) -> Result<Target> {
    shardax::config::set_compiler_options(quick::QUICK);
    Target::new(name)
}

fn setup(axes: &[(&'static str, usize)]) -> Result<Setup> {
    let target = target("cpu:8")?;
    target.prepare()?;
    let axes = axes.iter().map(|(name, size)| ((*name).into(), *size)).collect();
    Ok(Setup { axes, micro_batch: Some(16), ..Setup::new(target) })
}

fn report(plan: impl Fn(&Setup) -> Result<Plan>, axes: &[(&'static str, usize)]) -> Result<Report> {
    let setup = setup(axes)?;
    plan(&setup)?.report(&setup.target)
}

#[test]
fn data_parallel_sums_the_gradients_once() -> Result<()> {
    let report = report(models::mlp, &[("data", 8)])?;
    let weights = 1024 * 4096 + 4096 * 4096 + 4096 * 1024 + 4096 + 4096 + 1024;
    let parameters = 4.0 * weights as f64;
    assert_eq!(report.memory.bytes(Holder::Parameters), parameters);
    // Two moments, and two step counts.
    assert_eq!(report.memory.bytes(Holder::OptimizerState), 2.0 * parameters + 8.0);
    assert_eq!(report.memory.bytes(Holder::Batch), 2.0 * 2.0 * 1024.0 * 4.0);
    // All gradients and the loss in one all-reduce.
    let [sum] = &report.traffic[..] else { panic!("{report}") };
    assert_eq!((sum.kind, sum.participants, &sum.axes[..]), (CollectiveKind::AllReduce, 8, &["data".to_owned()][..]));
    assert_eq!((sum.bytes, sum.sent), (parameters + 4.0, (parameters + 4.0) * 2.0 * 7.0 / 8.0));
    assert_eq!((sum.link, report.roofline), (Link::Host, None));
    Ok(())
}

#[test]
fn fsdp_splits_the_state_of_a_decoder() -> Result<()> {
    let setup = setup(&[("fsdp", 8)])?;
    let plan = models::named("gpt", &setup)?;
    let report = plan.report(&setup.target)?;
    let Sizes { layers, features, .. } = Sizes::SMALL;
    let norms = (2 * layers + 1) * features;
    // Norms are replicated, kernels are split.
    let parameter_bytes = 4.0 * ((Sizes::SMALL.parameters() - norms) as f64 / 8.0 + norms as f64);
    assert_eq!(report.memory.bytes(Holder::Parameters), parameter_bytes);
    assert_eq!(report.memory.bytes(Holder::OptimizerState), 2.0 * parameter_bytes + 8.0);
    // Each kernel is gathered for the forward pass and again for the gradients.
    let gathered: f64 = report.traffic.iter().filter(|t| t.kind == CollectiveKind::AllGather).map(|t| t.bytes).sum();
    assert!(gathered >= 2.0 * 4.0 * (Sizes::SMALL.parameters() - norms) as f64 * 0.8, "{report}");
    assert!(report.traffic.iter().all(|t| t.axes == ["fsdp"] && !t.at_least), "{report}");
    Ok(())
}

// The CPU plugin's figures for the same program, summed in another way.
#[test]
fn sums_are_the_compiler_s() -> Result<()> {
    let target = target("cpu:8")?;
    target.prepare()?;
    let mesh = target.mesh([("data", 2), ("model", 4)])?;
    fn on(shape: &[usize], spec: PartitionSpec, mesh: &Mesh) -> Array {
        shape_dtype_struct_on(shape, DType::F32, NamedSharding::new(mesh, spec))
    }
    fn step(w: Array, x: Array) -> Result<Array> {
        fn layer(x: Array, w: Array) -> Result<(Array, ())> {
            Ok((x.dot(w).tanh(), ()))
        }
        fn loss(w: Array, x: &Array) -> Result<Array> {
            Ok(scan(layer, x.clone(), w)?.0.square().mean(..))
        }
        Ok(&w - grad(|w: Array| loss(w, &x)).call(&w)? * 0.1)
    }
    let lowered = || {
        jit(step)
            .donate_argnums([0])
            .lower((on(&[6, 64, 64], P![None, None, "model"], &mesh), on(&[32, 64], P!["data"], &mesh)))
    };
    let compiled = lowered()?.compile()?;
    let (memory, collectives) = (compiled.memory_analysis()?, compiled.collectives()?);
    // The plan reads the same program from its text, so that every sum must equal the compiler's.
    let report = Plan::from_lowered(lowered()?)?.holds(Holder::Parameters, "[0]").report(&target)?;
    let total = memory.arguments + memory.outputs - memory.aliased + memory.temporaries + memory.generated_code;
    assert_eq!(report.memory.total(), total as f64);
    assert_eq!(report.memory.bytes(Holder::Parameters), 6.0 * 64.0 * 16.0 * 4.0);
    assert_eq!(report.traffic.iter().map(|t| t.bytes).sum::<f64>(), collectives.bytes() as f64);
    assert_eq!(
        report.traffic.iter().map(|t| t.runs).sum::<usize>(),
        collectives.iter().filter_map(|c| c.runs).sum::<usize>()
    );
    assert_eq!(report.bytes_accessed, compiled.bytes_accessed()? as f64);
    Ok(())
}

// Without the platforms' compilers, the CPU's is used, and the report states that.
#[test]
fn without_the_platform_s_compiler() -> Result<()> {
    let target = target("h100:8")?.by_cpu();
    target.prepare()?;
    let setup = Setup { axes: vec![("fsdp".into(), 8)], ..Setup::new(target) };
    let report = models::named("mlp", &setup)?.report(&setup.target)?;
    let text = report.to_string();
    for wanted in ["compiled by the CPU's compiler", "NVLink", "of 80.0 GB", "MFU at most", "assumptions", "data sheet"]
    {
        assert!(text.contains(wanted), "{wanted:?} is not in\n{text}");
    }
    let roofline = report.roofline.as_ref().expect("H100s are described");
    assert!(roofline.step >= roofline.compute.max(roofline.memory) && roofline.mfu <= roofline.hfu);
    assert_eq!(roofline.compute, report.flops.matmuls / 8.0 / 989e12);
    assert_eq!(report.memory.fits(), Some(true));
    let json: serde_json::Value = serde_json::from_str(&report.to_json()).expect("JSON");
    assert_eq!(json["memory"]["total"].as_f64(), Some(report.memory.total()));
    let svg = report.to_svg();
    assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n") && svg.contains("fsdp (8)"), "{svg}");
    Ok(())
}

#[test]
fn targets_are_parsed_or_rejected() -> Result<()> {
    for (name, devices) in [("v5e:4x8", 32), ("2*v5p:4x4x4", 128), ("h100:128x8", 1024), ("h200:64", 64), ("b200", 8)] {
        assert_eq!(Target::new(name)?.num_devices(), devices, "{name}");
    }
    for name in ["v5p:8x8", "v5p:0x2x2", "tpu", "h100:1x2x3", "2*h100:8", "cpu:2x2", "h100:99999999999999999999", ""] {
        let error = Target::new(name).expect_err(name);
        assert!(error.to_string().contains("write `v5e:4x8`"), "{error}");
    }
    let target = target("cpu:8")?;
    target.prepare()?;
    let error = target.mesh([("data", 4)]).expect_err("too few");
    assert!(error.message().contains("the mesh data=4 has 4 devices, but cpu:8 has 8"), "{error}");
    Ok(())
}

#[test]
fn a_device_that_a_file_describes() -> Result<()> {
    let file = std::env::temp_dir().join(format!("shardax-plan-device-{}.json", std::process::id()));
    let name = format!("{}:2x4", file.display());
    fn write(text: &str, file: &std::path::Path) {
        std::fs::write(file, text).expect("it is written")
    }
    write(
        r#"{"name": "big", "memory": 192e9, "flops": 1e15, "memory_bandwidth": 5e12, "switch": 4e11, "outside": 5e10, "source": "a guess"}"#,
        &file,
    );
    let target = target(&name)?;
    target.prepare()?;
    let setup = Setup { axes: vec![("fsdp".into(), 8)], micro_batch: Some(16), ..Setup::new(target) };
    let report = models::mlp(&setup)?.report(&setup.target)?;
    assert_eq!((report.devices, report.memory.limit, report.source.as_deref()), (8, Some(192e9), Some("a guess")));
    assert_eq!(report.roofline.map(|r| r.compute), Some(report.matmul_flops_per_device / 1e15));
    assert!(report.traffic.iter().all(|t| t.link == Link::InfiniBand), "two hosts");
    for (text, wanted) in [
        // Files that do not describe a device are errors that name the mistake.
        ("", "EOF"),
        (r#"{"name": "big", "switch": -1}"#, r#""switch" must be a number above 0, got -1"#),
        (r#"{"name": "big", "torus": 4}"#, "2 or 3 dimensions, got 4"),
    ] {
        write(text, &file);
        let error = Target::new(&name).expect_err(text).to_string();
        assert!(error.contains(wanted) && error.contains("does not describe a device"), "{error}");
    }
    std::fs::remove_file(&file).ok();
    assert!(Target::new(&name).is_err_and(|e| e.to_string().contains("No such file")));
    Ok(())
}

#[test]
fn a_search_leaves_out_axes_that_split_nothing() -> Result<()> {
    let setup = Setup { micro_batch: Some(16), ..Setup::new(target("h100:8")?.by_cpu()) };
    let result = Search { compile: 1, remats: vec![Remat::None], ..Search::default() }.run(&models::cnn, &setup)?;
    // Four meshes of `data` and `fsdp`.
    assert_eq!((result.tried, &result.idle[..]), (4, &["expert".to_owned(), "model".to_owned()][..]));
    assert!(
        result.to_string().contains("no mesh has the axis \"model\", because it splits nothing in this step"),
        "{result}"
    );
    Ok(())
}

// All meshes of eight devices, estimated and compiled; a slice compiles three.
#[test]
fn estimates_are_close_to_the_compiler() -> Result<()> {
    fn options(pairs: &[(&str, &str)]) -> std::collections::BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect()
    }
    // The tolerances of memory and traffic. A decoder compiles slowly, so only a few meshes are compared.
    for (name, options, batch, compile, memory, sent) in [
        ("mlp", options(&[("features", "256"), ("hidden", "512")]), 64, 10 / quick::one_of(5), 0.3, 0.1),
        ("gpt", options(&[]), 16, 1, 0.1, 0.1),
    ] {
        let target = target("h100:8")?.by_cpu();
        let setup = Setup { micro_batch: Some(batch), options, ..Setup::new(target) };
        let search = Search { compile, remats: vec![Remat::Full], ..Search::default() };
        let result = search.run(&|setup| models::named(name, setup), &setup)?;
        assert_eq!(result.compiled.len(), (compile + compile.div_ceil(2)).min(result.tried), "{result}");
        for c in &result.compiled {
            let compiled: f64 = c.report.traffic.iter().map(|t| t.sent).sum();
            fn relative_error(theory: f64, compiled: f64) -> f64 {
                (theory / compiled - 1.0).abs()
            }
            let comparison =
                || format!("{name} {}: {} estimated, {} sent, and\n{}", c.options(), c.memory, c.sent, c.report);
            assert!(relative_error(c.memory, c.report.memory.total()) < memory, "memory of {}", comparison());
            assert!(relative_error(c.sent, compiled) < sent, "{compiled} sent by {}", comparison());
        }
    }
    Ok(())
}

#[test]
fn failures_of_a_search_are_reported() -> Result<()> {
    let setup = Setup { micro_batch: Some(16), ..Setup::new(target("h100:8")?.by_cpu()) };
    fn fails(setup: &Setup) -> Result<Plan> {
        match (setup.axis("data"), setup.axis("model")) {
            (4, 2) => Err(shardax::Error::new(shardax::ErrorKind::Value, "four by two is not a mesh of mine")),
            _ => models::mlp(setup),
        }
    }
    let result = Search { compile: 1, remats: vec![Remat::None], ..Search::default() }.run(&fails, &setup)?;
    let text = result.to_string();
    let expected =
        "not planned: --mesh data=4,model=2 --remat full --micro-batch 16: four by two is not a mesh of mine";
    assert!(text.contains(expected) && result.to_json().contains("four by two"), "{text}");
    Ok(())
}

#[test]
fn a_search_compiles_the_best_and_prints_the_rules() -> Result<()> {
    let target = target("h100:8")?.by_cpu();
    let mut setup = Setup { micro_batch: Some(64), ..Setup::new(target) };
    setup.options = [("features", "64"), ("hidden", "256")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    let search = Search { compile: 2, remats: vec![Remat::None, Remat::Full], ..Search::default() };
    let result = search.run(&models::mlp, &setup)?;
    // Ten meshes of eight devices with one micro-batch; `remat` makes no difference. Two of the fastest and one of the
    // smallest are compiled.
    assert_eq!((result.tried, result.too_large, result.compiled.len()), (10, 0, 3), "{result}");
    assert!(result.compiled[0].on_frontier && result.idle == ["expert"]);
    fn step(c: &Candidate) -> Option<f64> {
        c.report.roofline.as_ref().map(|r| r.step)
    }
    assert!(result.compiled.is_sorted_by(|a, b| step(a) <= step(b)));
    let text = result.to_string();
    assert!(text.contains("let rules = Rules::new(&mesh, [(\"batch\", ") && text.contains("(\"out\""), "{text}");
    // The JSON has all of it, with the lines of a program.
    let json: serde_json::Value = serde_json::from_str(&result.to_json()).expect("JSON");
    let fastest = &json["candidates"][0];
    assert_eq!(fastest["options"], result.compiled[0].options());
    assert_eq!(fastest["report"]["memory"]["total"].as_f64(), Some(result.compiled[0].report.memory.total()));
    assert_eq!(fastest["program"].as_str(), Some(&result.compiled[0].program()[..]));
    assert_eq!(json["candidates"].as_array().map(Vec::len), Some(3));
    let nothing = search.run(&models::mlp, &Setup::new(Target::new("cpu:8")?));
    assert!(nothing.is_err_and(|e| e.message().contains("the speeds of cpu:8 are unknown")));
    Ok(())
}

/// Published shapes with few layers: weights in bfloat16, divided over experts and features.
#[test]
fn prompts_of_published_decoders_hold_their_weights() -> Result<()> {
    // Weights that all layers have: the table of tokens, the last layer and norms are left out.
    fn experts(count: usize, hidden: usize, features: usize) -> usize {
        3 * count * hidden * features
    }
    for (name, layers, experts) in
        [("gpt-oss-20b", 1, experts(32, 2880, 2880)), ("deepseek-v3", 4, experts(256, 2048, 7168))]
    {
        let options = [("layers", layers), ("length", 64)].map(|(name, value)| (name.to_owned(), value.to_string()));
        let target = target("h100:8")?.by_cpu();
        target.prepare()?;
        let setup = Setup { axes: vec![("expert".into(), 8)], options: options.into(), ..Setup::new(target) };
        let report = models::named(name, &setup)?.report(&setup.target)?;
        let parameters = report.memory.bytes(Holder::Parameters);
        let of_experts = 2.0 * experts as f64 / 8.0;
        assert!(parameters > of_experts && parameters < 4.0 * of_experts + 10e9, "{name}: {parameters}, {of_experts}");
        assert!(report.traffic.iter().any(|traffic| traffic.kind == CollectiveKind::AllReduce), "{report}");
    }
    Ok(())
}
