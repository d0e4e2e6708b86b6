//! The parts of models: kinds of variables, filters, policies, sharding rules, tables.

#[path = "modules/assignment.rs"]
mod assignment;
#[path = "modules/attention.rs"]
mod attention;
#[path = "modules/experts.rs"]
mod experts;
#[path = "modules/linen.rs"]
mod linen;
#[path = "modules/perturbations.rs"]
mod perturbations;
#[path = "modules/precision.rs"]
mod precision;
#[path = "modules/quantized.rs"]
mod quantized;
#[path = "../../shardax/tests/common/quick.rs"]
#[allow(dead_code)]
mod quick;
#[path = "modules/random_keys.rs"]
mod random_keys;
#[path = "modules/recurrent.rs"]
mod recurrent;
#[path = "modules/rejected.rs"]
mod rejected;
#[path = "modules/stacks.rs"]
mod stacks;

use quick::setup;
use shardax::tree::Flat;
use shardax_alloc as _;
use shardax_nn::State;
use shardax_nn::prelude::*;

/// A block with every kind of variable.
#[derive(Module, Clone)]
struct Block {
    frozen: Frozen<Linear>,
    norm: BatchNorm,
    lora: LoRAParam,
    steps: Cache,
    out: Linear,
}

impl Block {
    fn new(rngs: &mut Rngs) -> Self {
        Block {
            frozen: Linear::new(3, 4, rngs).into(),
            norm: BatchNorm::new(4, rngs),
            lora: zeros([4, 4]).into(),
            steps: zeros_dtype((), DType::I32).into(),
            out: Linear::new(4, 2, rngs),
        }
    }

    fn forward(&mut self, x: &Array) -> Array {
        *self.steps = &*self.steps + 1;
        let h = self.norm.forward(self.frozen.forward(x));
        self.out.forward(&h + h.dot(&self.lora))
    }
}

fn keys(state: &State) -> Vec<&str> {
    state.keys().collect()
}

#[test]
fn kinds_follow_from_types_and_filters_choose_them() -> Result<()> {
    setup();
    let model = Block::new(&mut Rngs::new(0));
    assert_eq!(keys(&model.state_of(Filter::of::<Param>())), ["norm.bias", "norm.scale", "out.bias", "out.kernel"]);
    assert_eq!(keys(&model.state_of(Filter::of::<BatchStat>())), ["norm.mean", "norm.var"]);
    assert_eq!(keys(&model.state_of(Filter::of::<Frozen>())), ["frozen.bias", "frozen.kernel"]);
    assert_eq!(keys(&model.state_of(Filter::of::<LoRAParam>() | Filter::of::<Cache>())), ["lora", "steps"]);
    assert_eq!(keys(&model.state_of("**.bias")), ["frozen.bias", "norm.bias", "out.bias"]);
    assert_eq!(keys(&model.state_of("*.b*")), ["frozen.bias", "norm.bias", "out.bias"]);
    assert_eq!(keys(&model.state_of(Filter::path("**.kernel") & !Filter::of::<Frozen>())), ["out.kernel"]);
    assert!(model.state_of(Filter::nothing()).is_empty());
    assert_eq!(model.state_of(Filter::everything()).len(), Flat::of(&model).leaves.len());

    // The first filter that matches an array decides.
    let (structure, [params, stats, rest]) =
        model.split_by([Filter::of::<Param>(), Filter::of::<BatchStat>(), Filter::everything()])?;
    assert_eq!((params.len(), stats.len(), rest.len()), (4, 2, 4));
    let again: Block = merge(&structure, params.into_iter().chain(stats).chain(rest).collect::<State>())?;
    assert_eq!(again.out.kernel.to_vec::<f32>()?, model.out.kernel.to_vec::<f32>()?);
    let message = model.split_by([Filter::of::<Param>()]).unwrap_err().to_string();
    assert!(message.contains("no filter selects the array \"frozen.kernel\""), "{message}");

    let mut changed = model.clone();
    changed.update(&[("out.bias", ones([2]))].into_iter().collect())?;
    assert_eq!(changed.out.bias.expect("a bias").to_vec::<f32>()?, [1.0; 2]);
    Ok(())
}

/// The optimizer updates only parameters, and has a state only for them. The program updates statistics.
#[test]
fn optimizers_update_only_parameters() -> Result<()> {
    setup();
    let x = random::normal(random::key(1), [8, 3]);
    let start = Optimizer::new(Block::new(&mut Rngs::new(0)), adamw(1e-2, 1e-1))?;
    let message = TrainState::create(start.model.clone(), sgd(0.1)).err().map(|e| e.to_string()).unwrap_or_default();
    assert!(message.contains("frozen.kernel is a Frozen, not a parameter"), "{message}");

    let step = jit(move |mut optimizer: Optimizer<Block>| -> Result<_> {
        let loss = optimizer.minimize(|model| (model.forward(&x) - 1).square().mean(..))?;
        Ok((optimizer, loss))
    });
    let (one, first) = step.call(&start)?;
    let (two, second) = step.call(&one)?;
    assert!(second.item::<f32>()? < first.item::<f32>()?);
    let same =
        |key: &str| -> Result<bool> { Ok(start.model.state()[key].to_bytes()? == two.model.state()[key].to_bytes()?) };
    for key in ["frozen.kernel", "frozen.bias", "lora"] {
        assert!(same(key)?, "{key} moved");
    }
    for key in ["norm.mean", "norm.var", "steps", "out.kernel", "norm.scale"] {
        assert!(!same(key)?, "{key} stayed");
    }
    assert_eq!(two.model.steps.item::<i32>()?, 2);
    let paths = tree::structure(&two.opt_state).paths();
    assert!(!paths.iter().any(|path| path.contains("mean") || path.contains("frozen")), "{paths:?}");

    // A low-rank adaptation: only its matrix.
    let mut adapted = Optimizer::wrt(start.model.clone(), sgd(0.1), Filter::of::<LoRAParam>())?;
    adapted.update([("lora", ones([4, 4]))].into_iter().collect::<State>())?;
    assert_eq!(adapted.model.lora.to_vec::<f32>()?, [-0.1; 16]);
    assert_eq!(adapted.model.out.kernel.to_vec::<f32>()?, start.model.out.kernel.to_vec::<f32>()?);
    Ok(())
}

/// A mode reaches every layer, however deep, and a model of layers with state is one layer.
#[test]
fn modes_reach_all_layers() -> Result<()> {
    setup();
    let x = random::normal(random::key(3), [16, 5]) * 3 + 1;
    let make =
        |rngs: &mut Rngs| Sequential((Linear::new(5, 5, rngs), BatchNorm::new(5, rngs), Dropout::new(0.5, rngs)));
    let mut model = Stack::new(3, &mut Rngs::new(0), make)?;
    let (first, second) = (model.forward(&x), model.forward(&x));
    assert_ne!(first.to_vec::<f32>()?, second.to_vec::<f32>()?);
    assert_eq!(
        model.layers.0.2.rngs.as_ref().map(|rngs| tree::leaves(rngs)[1].to_vec::<u32>()).transpose()?,
        Some(vec![2; 3])
    );
    model.eval();
    let stats = model.state_of(Filter::of::<BatchStat>());
    assert_eq!(model.forward(&x).to_vec::<f32>()?, model.forward(&x).to_vec::<f32>()?);
    let after = model.state_of(Filter::of::<BatchStat>());
    assert!(stats.iter().all(|(key, value)| value.to_bytes().ok() == after[key].to_bytes().ok()));
    model.train();
    assert_ne!(model.forward(&x).to_vec::<f32>()?, model.forward(&x).to_vec::<f32>()?);

    // Wrappers propagate state changes of the wrapped layer.
    let mut wrapped = WeightNorm::new(make(&mut Rngs::new(1)))?;
    let mut spectral = SpectralNorm::new(make(&mut Rngs::new(1)), &mut Rngs::new(2));
    let mut adapted = LoRA::new(5, 2, 5, &mut Rngs::new(1)).around(make(&mut Rngs::new(1)));
    for layer in [&mut wrapped as &mut dyn Stateful, &mut spectral, &mut adapted] {
        layer.forward_twice(&x)?;
    }
    fn experts(rngs: &mut Rngs) -> Sequential<(Linear, Dropout)> {
        Sequential((Linear::new(5, 5, rngs), Dropout::new(0.5, rngs)))
    }
    let message = MixtureOfExperts::new(4, 2, 5, &mut Rngs::new(0), experts).expect_err("a Dropout").to_string();
    assert!(message.contains("experts with state"), "{message}");
    Ok(())
}

/// A layer whose calls differ in training mode.
trait Stateful {
    fn forward_twice(&mut self, x: &Array) -> Result<()>;
}

impl<L: Layer> Stateful for L {
    fn forward_twice(&mut self, x: &Array) -> Result<()> {
        let (first, second) = (self.forward(x.clone()), self.forward(x.clone()));
        assert_ne!(first.to_vec::<f32>()?, second.to_vec::<f32>()?);
        Ok(())
    }
}

#[test]
fn layers_without_scale_or_bias_normalize_alone() -> Result<()> {
    setup();
    let x = random::normal(random::key(3), [4, 6, 6, 8]) * 2 + 5;
    let mut rngs = Rngs::new(0);
    let plain = LayerNorm::builder(8).use_scale(false).use_bias(false).build(&mut rngs).forward(&x);
    let expected = LayerNorm::new(8, &mut rngs).forward(&x);
    assert!(allclose(plain, expected, 1e-6, 1e-6)?);
    let plain = GroupNorm::builder(8, 2).use_bias(false).build(&mut rngs);
    assert_eq!(plain.state().keys().collect::<Vec<_>>(), ["scale"]);
    assert!(allclose(plain.forward(&x), GroupNorm::new(8, 2, &mut rngs).forward(&x), 1e-6, 1e-6)?);
    // With as many groups as features it is the same as for each feature.
    let per_instance = InstanceNorm::new(8, &mut rngs).forward(&x);
    assert!(allclose(&per_instance, GroupNorm::new(8, 8, &mut rngs).forward(&x), 1e-5, 1e-5)?);
    assert!(allclose(per_instance.mean([1, 2]), zeros([4, 8]), 0.0, 1e-5)?);
    Ok(())
}

#[test]
fn a_policy_is_every_layers() -> Result<()> {
    setup();
    let x = ones([2, 6, 6, 4]);
    let mut rngs = Rngs::new(0).with_policy(Policy::bf16_compute());
    fn dtypes(y: Array, layer: State) -> (DType, Vec<DType>) {
        (y.dtype(), layer.values().map(Array::dtype).collect::<Vec<_>>())
    }
    let (conv, norm) = (Conv::new(4, 4, [3, 3], &mut rngs), LayerNorm::new(4, &mut rngs));
    assert_eq!(dtypes(conv.forward(&x), conv.state()), (DType::Bf16, vec![DType::F32; 2]));
    assert_eq!(dtypes(norm.forward(&x), norm.state()), (DType::Bf16, vec![DType::F32; 2]));
    let embed = Embed::new(4, 2, &mut rngs);
    assert_eq!(dtypes(embed.forward(array([1, 2])), embed.state()), (DType::Bf16, vec![DType::F32]));
    let custom = Linear::builder(4, 4).dtype(DType::F32).build(&mut rngs);
    assert_eq!(custom.forward(&x).dtype(), DType::F32);
    // The carry of a recurrent network has the dtype of its parameters.
    let rnn = Rnn::new(GruCell::new(4, 4, &mut rngs));
    let (carry, y) = rnn.run(ones([2, 6, 4]), None, Some(&array([6, 2])))?;
    assert_eq!((carry.dtype(), y.dtype()), (DType::F32, DType::F32));
    let attention = MultiHeadAttention::new(2, 4, &mut rngs);
    assert_eq!(dtypes(attention.forward(&x), attention.query.state()), (DType::Bf16, vec![DType::F32; 2]));
    let mut rngs = Rngs::new(0).with_policy(Policy::bf16());
    assert_eq!(Linear::new(4, 4, &mut rngs).kernel.dtype(), DType::Bf16);
    Ok(())
}

/// A model whose dimensions have names.
#[derive(Module, Clone)]
struct Mlp {
    up: Linear,
    down: Linear,
    #[tree(static)]
    rules: Rules,
}

impl Mlp {
    fn new(rngs: &mut Rngs) -> Self {
        Mlp {
            up: Linear::builder(16, 64).kernel_axes(["embed", "mlp"]).build(rngs),
            down: Linear::builder(64, 16).kernel_axes(["mlp", "embed"]).build(rngs),
            rules: rngs.rules(),
        }
    }

    fn forward(&self, x: Array) -> Array {
        let x = self.rules.constrain(x, [Some("batch"), None]);
        let hidden = self.rules.constrain(relu(self.up.forward(x)), ["batch", "mlp"]);
        self.down.forward(hidden)
    }
}

/// Ten steps of one model under several sharding rules compute the same numbers.
#[test]
fn rules_decide_how_a_model_is_sharded() -> Result<()> {
    setup();
    let mesh = make_mesh([("data", 2), ("model", 4)])?;
    let x = random::normal(random::key(1), [32, 16]);
    let losses = |rules: &Rules| -> Result<(Optimizer<Mlp>, Vec<f32>)> {
        let captured = rules.clone();
        let mut state =
            rules.init(move || Optimizer::new(Mlp::new(&mut Rngs::new(0).with_rules(&captured)), adamw(1e-2, 1e-2)))?;
        let step = jit(|mut optimizer: Optimizer<Mlp>, x: Array| -> Result<_> {
            let loss = |model: Mlp| (model.forward(x.clone()) - 1).square().mean(..);
            let (loss, grads) = value_and_grad(loss).call(optimizer.model.clone())?;
            optimizer.update(grads)?;
            Ok((optimizer, loss))
        });
        let x = match rules.sharding([Some("batch"), None]) {
            Some(sharding) => device_put(&x, &sharding)?,
            None => x.clone(),
        };
        let mut losses = Vec::new();
        for _ in 0..10 {
            let (next, loss) = step.call((state, &x))?;
            losses.push(loss.item::<f32>()?);
            state = next;
        }
        Ok((state, losses))
    };
    let (alone, want) = losses(&Rules::default())?;
    assert!(want[9] < want[0]);
    let data = Rules::new(&mesh, [("batch", ("data", "model"))]);
    let fsdp = Rules::new(&mesh, [("batch", "data")]).and("embed", "data");
    let tensor = Rules::new(&mesh, [("batch", "data"), ("mlp", "model")]);
    let combined_rules = tensor.clone().and("embed", "data");
    // The kernel's spec, and the elements of it that a device has.
    for (rules, spec, held) in [
        (&data, P![], 1024),
        (&fsdp, P!["data"], 512),
        (&tensor, P![None, "model"], 256),
        (&combined_rules, P!["data", "model"], 128),
    ] {
        let (state, got) = losses(rules)?;
        for (g, w) in got.iter().zip(&want) {
            assert!((g - w).abs() <= 1e-5 * w.abs().max(1.0), "{rules:?}: {got:?}, want {want:?}");
        }
        let kernel = &state.model.up.kernel;
        assert_eq!(kernel.sharding()?.spec()?.trimmed(), spec, "{rules:?}");
        assert_eq!(kernel.addressable_data(0)?.size(), held);
        assert!(allclose(kernel, &alone.model.up.kernel, 1e-4, 1e-5)?);
        // The moments are sharded like their parameters.
        for (path, moment) in tree::leaves_with_path(&state.opt_state) {
            if path.contains("up.kernel") {
                assert_eq!(moment.addressable_data(0)?.size(), held, "{path}");
            }
        }
    }
    Ok(())
}

#[test]
fn rules_give_each_mesh_axis_once() -> Result<()> {
    setup();
    let mesh = make_mesh([("data", 2), ("model", 4)])?;
    let rules = Rules::new(&mesh, [("embed", "data"), ("mlp", "model"), ("heads", "model"), ("heads", "data")]);
    assert_eq!(rules.spec(["embed", "mlp"]), P!["data", "model"]);
    // Earlier rules take precedence; a later rule of the same name gets the remaining axis.
    assert_eq!(rules.spec(["heads", "mlp"]), P!["data", "model"]);
    assert_eq!(rules.spec(["mlp", "heads", "embed"]), P!["model", None, "data"]);
    assert_eq!(rules.spec([Some("unknown"), None]), P![None, None]);
    Ok(())
}

#[derive(Module, Clone)]
struct Cnn {
    conv1: Conv,
    conv2: Conv,
    dense: Linear,
}

#[test]
fn a_table_of_a_model() -> Result<()> {
    setup();
    let mut rngs = Rngs::new(0);
    let model = Cnn {
        conv1: Conv::new(3, 32, [3, 3], &mut rngs),
        conv2: Conv::new(32, 64, [3, 3], &mut rngs),
        dense: Linear::new(4096, 10, &mut rngs),
    };
    let table = tabulate(&model);
    let want = "\
path   type    arrays                                           kind   elements  bytes
conv1  Conv    kernel: float32[3,3,3,32], bias: float32[32]     Param  896       3.6 KB
conv2  Conv    kernel: float32[3,3,32,64], bias: float32[64]    Param  18,496    74.0 KB
dense  Linear  kernel: float32[4096,10], bias: float32[10]      Param  40,970    163.9 KB

Total Parameters: 60,362 (241.4 KB)
";
    assert_eq!(table.split_whitespace().collect::<Vec<_>>(), want.split_whitespace().collect::<Vec<_>>(), "{table}");
    let table = tabulate(&Block::new(&mut rngs));
    assert!(table.contains("Total BatchStat: 8 (32 B)") && table.contains("Total Frozen: 16 (64 B)"), "{table}");
    Ok(())
}

/// The numbers are Flax's.
#[test]
fn prelu_has_a_slope_that_is_learned() -> Result<()> {
    setup();
    let layer = PReLU::new(0.1);
    let x = array([-2.0f32, 0.0, 3.0]);
    assert_eq!(layer.forward(&x).to_vec::<f32>()?, [-0.2, 0.0, 3.0]);
    assert_eq!(layer.forward(x.astype(DType::Bf16)).dtype(), DType::Bf16);
    let loss = |layer: PReLU, x: Array| (layer.forward(x) * array([1.0f32, 2.0, 3.0])).sum(..);
    let (slope, dx) = grad(loss).argnums((Arg::<0>, Arg::<1>)).call((layer, &x))?;
    assert_eq!(slope.negative_slope.item::<f32>()?, -2.0);
    assert_eq!(dx.to_vec::<f32>()?, [0.1, 2.0, 3.0]);
    let features = PReLU { negative_slope: array([1.0f32, 0.5]) };
    assert_eq!(features.forward(array([[-1.0f32, -1.0], [1.0, -4.0]])).to_vec::<f32>()?, [-1.0, -0.5, 1.0, -2.0]);
    let mut layers = Sequential((Linear::new(2, 3, &mut Rngs::new(0)), PReLU::new(0.2)));
    assert_eq!(layers.forward(ones([1, 2])).shape(), [1, 3]);
    Ok(())
}

#[test]
fn texts_and_numbers_are_paddings_of_convolutions() -> Result<()> {
    setup();
    let shape = |padding: ConvPadding| -> Result<Vec<usize>> {
        let layer = Conv::builder(3, 4, [3]).padding(padding).build(&mut Rngs::new(0));
        let y = layer.forward(ones([1, 8, 3]));
        y.check()?;
        Ok(y.shape().to_vec())
    };
    for (padding, size) in [("SAME", 8), ("VALID", 6), ("CIRCULAR", 8), ("REFLECT", 8), ("CAUSAL", 8)] {
        assert_eq!(shape(padding.into())?, [1, size, 4], "{padding}");
    }
    assert_eq!(shape(2.into())?, [1, 10, 4]);
    let error = shape("CASUAL".into()).expect_err("a text that names no padding").to_string();
    assert!(error.contains("unknown padding \"CASUAL\""), "{error}");
    Ok(())
}
