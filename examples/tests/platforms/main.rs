//! Programs of every form of parallelism, lowered once for eight devices and compiled for TPUs and GPUs.
//! `cargo xtask platforms` writes `docs/platforms.md` from the results.

mod forms;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use shardax::sharding::DimSpec;
use shardax_models::{Decoder, DecoderConfig};
use shardax_nn::prelude::*;

/// Properties of a compiled program.
struct Row {
    arguments: i64,
    temporaries: i64,
    collectives: String,
}

/// A lowered program, which is compiled for a topology.
type Waiting = Box<dyn Fn(&Topology) -> Result<Row>>;

fn waiting<Args: Tree + 'static, Out: Tree + 'static>(lowered: Lowered<Args, Out>) -> Waiting {
    Box::new(move |topology| {
        let compiled = lowered.compile_for(topology)?;
        let memory = compiled.memory_analysis()?;
        let mut kinds = BTreeMap::<(CollectiveKind, String), (usize, bool)>::new();
        for c in compiled.collectives()?.iter() {
            let axes = c.axes.iter().map(|axis| axis.to_string()).collect::<Vec<_>>().join("+");
            let sum = kinds.entry((c.kind, axes)).or_default();
            sum.0 += c.runs.unwrap_or(c.count);
            sum.1 |= c.runs.is_none();
        }
        Ok(Row {
            arguments: memory.arguments,
            temporaries: memory.temporaries,
            collectives: kinds
                .into_iter()
                .map(|((kind, axes), (runs, more)): ((CollectiveKind, String), (usize, bool))| {
                    let axes = if axes.is_empty() { String::new() } else { format!(" {axes}") };
                    format!("{kind}{axes} ×{runs}{}", if more { "…" } else { "" })
                })
                .collect::<Vec<_>>()
                .join(", "),
        })
    })
}

/// The model of the example `lm`.
fn config(features: usize, kv_heads: usize) -> DecoderConfig {
    DecoderConfig { kv_heads, tie_embeddings: true, ..DecoderConfig::new(256, 2, features, 8) }
}

type State = Optimizer<Decoder>;

fn gpt_step(mut state: State, tokens: Array, targets: Array) -> Result<(State, Array)> {
    let loss = |model: Decoder| softmax_cross_entropy_with_integer_labels(model.forward(&tokens), &targets).mean(..);
    let (loss, grads) = value_and_grad(loss).call(&state.model)?;
    state.update(grads)?;
    Ok((state, loss))
}

/// A training step of a transformer over a mesh of `data`, `fsdp` and `model`.
fn gpt([data, fsdp, tensor]: [usize; 3]) -> Result<Waiting> {
    gpt_on(make_mesh([("data", data), ("fsdp", fsdp), ("model", tensor)])?, config(128, 4), [16, 64])
}

fn gpt_on(mesh: Mesh, config: DecoderConfig, tokens: [usize; 2]) -> Result<Waiting> {
    let along = |names: &[&'static str]| DimSpec::from_iter(names.iter().copied());
    let rules = Rules::new(&mesh, [("batch", along(&["data", "fsdp"]))])
        .and("embed", along(&["fsdp"]))
        .and("heads", along(&["model"]))
        .and("mlp", along(&["model"]));
    let types = eval_shape(move || State::new(Decoder::new(&config, &mut Rngs::new(0))?, adamw(1e-3, 0.01)), ())?;
    let shardings = rules.shardings(&types)?;
    let tokens = || shape_dtype_struct(tokens, DType::I32);
    let batch = NamedSharding::new(&mesh, rules.spec(["batch", "length"]));
    let step = jit(gpt_step)
        .in_shardings((&shardings, &batch, &batch))
        .out_shardings((&shardings, UNSPECIFIED))
        .donate_argnums([0]);
    Ok(waiting(step.lower((types, tokens(), tokens()))?))
}

/// Decoding of one token with cached keys and values.
fn gpt_decode() -> Result<Waiting> {
    let model = eval_shape(|| Decoder::new(&config(128, 4), &mut Rngs::new(0)), ())?;
    let filled = eval_shape(
        |mut model: Decoder| {
            model.init_cache(1, 64);
            model.state_of(Filter::of::<Cache>())
        },
        &model,
    )?;
    let next = jit(|mut model: Decoder, token: Array, cache: ModuleState| -> Result<(Array, ModuleState)> {
        model.init_cache(1, 64);
        model.update(&cache)?;
        let logits = model.decode(token);
        Ok((logits, model.state_of(Filter::of::<Cache>())))
    });
    let token = shape_dtype_struct([1, 1], DType::I32);
    Ok(waiting(next.donate_argnums([2]).lower((model, token, filled))?))
}

#[derive(Module, Clone)]
struct Cnn {
    conv1: Conv,
    conv2: Conv,
    dense: Linear,
}

impl Cnn {
    fn new(rngs: &mut Rngs) -> Self {
        Cnn {
            conv1: Conv::new(3, 32, [3, 3], rngs),
            conv2: Conv::new(32, 64, [3, 3], rngs),
            dense: Linear::new(64 * 8 * 8, 10, rngs),
        }
    }

    fn forward(&self, x: &Array) -> Array {
        let x = max_pool(relu(self.conv1.forward(x)), [2, 2], [2, 2]);
        let x = max_pool(relu(self.conv2.forward(x)), [2, 2], [2, 2]);
        self.dense.forward(x.flatten_from(1))
    }
}

type CnnState = Optimizer<Cnn>;

fn cnn_pmap() -> Result<Waiting> {
    let step = |mut state: CnnState, x: Array, labels: Array| -> Result<(CnnState, Array)> {
        let loss = |model: Cnn| softmax_cross_entropy_with_integer_labels(model.forward(&x), &labels).mean(..);
        let (loss, grads) = value_and_grad(loss).call(&state.model)?;
        state.update(pmean(grads, "batch"))?;
        Ok((state, pmean(loss, "batch")))
    };
    let types = eval_shape(|| CnnState::new(Cnn::new(&mut Rngs::new(0)), adam(1e-3)), ())?;
    let step = pmap(step).axis_name("batch").in_axes((None, 0, 0)).out_axes(None).donate_argnums([0]);
    let images = shape_dtype_struct([8, 16, 32, 32, 3], DType::F32);
    Ok(waiting(step.lower((types, images, shape_dtype_struct([8, 16], DType::I32)))?))
}

/// Layers in a loop with recomputation, and parameters split over `fsdp`.
fn scanned_layers() -> Result<Waiting> {
    let mesh = make_mesh([("fsdp", 8)])?;
    let rows = |spec| NamedSharding::new(&mesh, spec);
    let layer = checkpoint(|x: Array, w: Array| gelu(x.dot(w)));
    let loss = move |w: Array, x: Array| -> Result<Array> {
        Ok(scan(|x: Array, w: Array| -> Result<(Array, ())> { Ok((layer.call((x, w))?, ())) }, x, w)?
            .0
            .square()
            .mean(..))
    };
    let step = jit(move |w: Array, x: Array| -> Result<Array> { Ok(&w - grad(&loss).call((w.clone(), x))? * 0.1) });
    let step = step.out_shardings(rows(P![None, "fsdp"])).donate_argnums([0]);
    let w = shape_dtype_struct_on([6, 256, 256], DType::F32, rows(P![None, "fsdp"]));
    Ok(waiting(step.lower((w, shape_dtype_struct_on([64, 256], DType::F32, rows(P!["fsdp"]))))?))
}

/// Ring attention.
fn ring_attention() -> Result<Waiting> {
    let mesh = make_mesh([("ring", 8)])?;
    let attend = |q: Array, k: Array, v: Array| -> Result<Array> {
        let around: Vec<(usize, usize)> = (0..8).map(|i| (i, (i + 1) % 8)).collect();
        let step = move |_: Array, (k, v, sum, norm): (Array, Array, Array, Array)| {
            let weights = einsum("bqd,bkd->bqk", &[&q, &k]).exp();
            let sum = sum + einsum("bqk,bkd->bqd", &[&weights, &v]);
            let (k, v) = ppermute((k, v), "ring", around.clone());
            (k, v, sum, norm + weights.sum_keepdims(-1))
        };
        let start = (k, v.clone(), zeros_like(&v), zeros_like(&v.sum_keepdims(-1)));
        let (_, _, sum, norm) = fori_loop(0, 8, step, start)?;
        Ok(sum / norm)
    };
    let spec = || P![None, "ring"];
    let mapped = shard_map(attend, &mesh).in_specs((spec(), spec(), spec())).out_specs(spec()).check_vma(false);
    let x = || shape_dtype_struct_on([4, 256, 64], DType::F32, NamedSharding::new(&mesh, spec()));
    Ok(waiting(jit(mapped).lower((x(), x(), x()))?))
}

/// Every collective of `shard_map`, over one axis or two.
fn collectives() -> Result<Waiting> {
    let mesh = make_mesh([("x", 2), ("y", 4)])?;
    let all = |x: Array| {
        let gathered = all_gather_tiled(x, "x", 0);
        let scattered = psum_scatter_tiled(gathered, "y", 0);
        let moved = ppermute(scattered, "y", [(0, 1), (1, 2), (2, 3), (3, 0)]);
        pmax(all_to_all_tiled(moved, "y", 0, 0), ("x", "y"))
    };
    let mapped = shard_map(all, &mesh).in_specs(P![("x", "y")]).out_specs(P![]);
    let x = shape_dtype_struct_on([256, 256], DType::F32, NamedSharding::new(&mesh, P![("x", "y")]));
    Ok(waiting(jit(mapped).lower(&x)?))
}

/// A linear model, as in a first program.
fn linear_regression() -> Result<Waiting> {
    let step = pmap(move |p: (Array, Array), x: Array, y: Array| -> Result<(Array, Array)> {
        let grads = pmean(
            grad(|(w, b): (Array, Array), x: Array, y: Array| (x.dot(w) + b - y).square().mean(..)).call((
                p.clone(),
                x,
                y,
            ))?,
            "batch",
        );
        tree::map2(|p, g| p - g * 0.1, p, grads)
    })
    .axis_name("batch")
    .in_axes((None, 0, 0))
    .out_axes(None);
    let float = |shape: &[usize]| shape_dtype_struct(shape, DType::F32);
    Ok(waiting(step.lower(((float(&[5]), float(&[])), float(&[8, 16, 5]), float(&[8, 16])))?))
}

/// Random numbers, a sort and top-k of values that the compiler partitions.
fn split_by_the_compiler() -> Result<Waiting> {
    let mesh = make_mesh([("x", 8)])?;
    let f = jit(|x: Array, key: Array| -> Result<(Array, Array, Array)> {
        let noise: Array = random::normal(&key, x.shape());
        let noisy = x + noise;
        Ok((noisy.sort(-1), lax::top_k(&noisy, 4).0, noisy.cumsum(0)))
    });
    let key = shape_dtype_struct((), DType::Key);
    let x = shape_dtype_struct_on([64, 128], DType::F32, NamedSharding::new(&mesh, P!["x"]));
    Ok(waiting(f.lower((x, key))?))
}

/// A program: name, description, and the function that lowers it.
type Program = (&'static str, &'static str, fn() -> Result<Waiting>);

const PROGRAMS: &[Program] = &[
    ("linear_regression", "`pmap`, gradients by `pmean`", linear_regression),
    ("cnn_pmap", "CNN, Adam, `pmap`", cnn_pmap),
    ("gpt_data_parallel", "GPT, AdamW, data 8", || gpt([8, 1, 1])),
    ("gpt_fsdp", "GPT, AdamW, FSDP 8", || gpt([1, 8, 1])),
    ("gpt_tensor_parallel", "GPT, AdamW, data 2 × tensor 4", || gpt([2, 1, 4])),
    ("gpt_2d", "GPT, AdamW, data 2 × FSDP 2 × tensor 2", || gpt([2, 2, 2])),
    ("gpt_decode", "GPT, a token by cached keys, one device", gpt_decode),
    ("scanned_layers", "6 layers in `scan`, recomputed, FSDP 8", scanned_layers),
    ("ring_attention", "`shard_map`, keys around a ring of 8", ring_attention),
    ("pipeline_gpipe", "16 layers in 8 stages, GPipe, 16 micro-batches", forms::gpipe),
    ("pipeline_1f1b", "the same, 1F1B", forms::one_f_one_b),
    ("sequence_parallel", "attention, its sequence round a ring of 8", forms::sequence_parallel),
    ("experts", "16 experts on 8 devices, 2 for each token", forms::experts),
    ("collectives", "`shard_map`, every collective", collectives),
    ("split_by_the_compiler", "random numbers, sort, top k, sums of rows over 8", split_by_the_compiler),
];

fn topologies() -> Result<Vec<Topology>> {
    let slices = TpuTopology { num_slices: 2, ..TpuTopology::new("v5p:2x2x1") };
    Ok(vec![
        Topology::tpu("v5e:2x4")?,
        Topology::tpu("v5p:2x2x2")?,
        Topology::tpu(slices)?,
        Topology::gpu(GpuSpec::H100)?,
    ])
}

/// Writes a line for each program and topology to the file `SHARDAX_TEST_PLATFORMS_OUT`.
#[test]
#[ignore = "a table, made by a command of its own"]
fn programs_on_topologies() -> Result<()> {
    config::set_num_cpu_devices(8)?;
    let topologies = topologies()?;
    let mut lines = String::new();
    for (name, message, lower) in PROGRAMS {
        let waiting = lower()?;
        for topology in &topologies {
            let begun = std::time::Instant::now();
            let slices = topology.devices().iter().filter_map(|d| d.slice_index()).max().map_or(1, |last| last + 1);
            let on = if slices > 1 { format!("{slices} × {}", topology.name()) } else { topology.name().to_owned() };
            let result = match waiting(topology) {
                Ok(row) => format!("{}|{}|{}", row.arguments, row.temporaries, row.collectives),
                Err(error) => format!("rejected|{}|", error.message().lines().next().unwrap_or_default()),
            };
            let _ = writeln!(lines, "program|{name}|{message}|{on}|{result}");
            eprintln!("{name} for {on}: {result} ({:?})", begun.elapsed());
        }
    }
    // Lowered for the target devices directly: a thousand CPUs are not simulated.
    for topology in [
        Topology::tpu(TpuTopology { wrap: Some([true; 3]), ..TpuTopology::new("v5p:8x8x16") })?,
        Topology::gpu(GpuTopology { hosts: 128, ..GpuTopology::new(GpuSpec::H100) })?,
    ] {
        let begun = std::time::Instant::now();
        let mesh = topology.mesh([("data", 1), ("fsdp", 128), ("model", 8)])?;
        let waiting = gpt_on(mesh, config(1024, 8), [128, 128])?;
        let lowered = begun.elapsed();
        let row = waiting(&topology)?;
        let message = "GPT of 34M parameters, FSDP 128 × tensor 8";
        let (name, Row { arguments, temporaries, collectives }) = (topology.name(), row);
        let _ = writeln!(lines, "program|gpt_1024|{message}|{name}|{arguments}|{temporaries}|{collectives}");
        eprintln!("gpt_1024 for {name}: {collectives} (lowered in {lowered:?}, all in {:?})", begun.elapsed());
    }
    let out = std::env::var("SHARDAX_TEST_PLATFORMS_OUT").unwrap_or_else(|_| "/dev/stdout".to_owned());
    std::fs::write(&out, lines).expect("the lines can be written");
    Ok(())
}
