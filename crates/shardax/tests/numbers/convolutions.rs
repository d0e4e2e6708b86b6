//! Convolutions that the CPU kernels compute instead of XLA: every element, NaN and infinities included, is XLA's.
//! Inputs are whole numbers, whose sums are exact in any order; noise shows whether bits repeat.
//!
//! XLA (xla-cpu-pjrt 0.0.1) leaves out padding in some shapes and multiplies it in others, which shows if a filter or a
//! cotangent is not finite. The kernels always multiply it, like XLA's convolution of an image that is padded before.

use std::hash::{DefaultHasher, Hash, Hasher};

use shardax::lax::{self, ConvOptions, Padding, Precision};

use super::common::child;
use super::common::quick::one_of;
use super::*;

const VARIABLE: &str = "SHARDAX_CPU_KERNELS";

/// A linear congruential generator.
struct Random(u64);

impl Random {
    /// A number from `low` to `high`.
    fn within(&mut self, low: i64, high: i64) -> i64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        low + ((self.0 >> 33) % (high - low + 1) as u64) as i64
    }

    fn sizes(&mut self, n: usize, low: i64, high: i64) -> Vec<usize> {
        (0..n).map(|_| self.within(low, high) as usize).collect()
    }

    /// Whole numbers from -2 to 2.
    fn whole(&mut self, shape: &[usize]) -> Array {
        let numbers: Vec<f32> = (0..shape.iter().product()).map(|_: usize| self.within(-2, 2) as f32).collect();
        Array::from_vec(numbers, shape).unwrap()
    }

    fn noise(&mut self, shape: &[usize]) -> Array {
        let numbers = (0..shape.iter().product()).map(|_: usize| self.within(-1000, 1000) as f32 / 777.0);
        Array::from_vec(numbers.collect(), shape).unwrap()
    }
}

#[derive(Debug)]
struct Case {
    x: Vec<usize>,
    kernel: Vec<usize>,
    stride: Vec<usize>,
    pads: Vec<(i64, i64)>,
    dilation: Vec<usize>,
    groups: usize,
    /// The layouts of image, kernel and result.
    layouts: [&'static str; 3],
}

const LAYOUTS: [[[&str; 3]; 2]; 3] = [
    [["NWC", "WIO", "NWC"], ["NCW", "OIW", "NCW"]],
    [["NHWC", "HWIO", "NHWC"], ["NCHW", "OIHW", "NCHW"]],
    [["NDHWC", "DHWIO", "NDHWC"], ["NCDHW", "OIDHW", "NCDHW"]],
];

impl Case {
    /// A convolution of one to three spatial dimensions whose window fits; with `tiled` one that is computed by tiles.
    fn random(random: &mut Random, tiled: bool) -> Case {
        let n = if tiled { 2 } else { random.within(1, 3) as usize };
        let (mut groups, inputs) = ([1, 1, 2, 3][random.within(0, 3) as usize], random.within(1, 5) as usize);
        let mut features = [groups * inputs, groups * random.within(1, 5) as usize];
        if tiled {
            groups = 1;
            features = [16, 32];
        } else if random.within(0, 3) == 0 {
            // Depthwise, of more features than are processed together.
            groups = random.within(2, 35) as usize;
            features = [groups, groups * random.within(1, 2) as usize];
        }
        let window = if tiled { vec![3; n] } else { random.sizes(n, 1, 4) };
        let dilation = if tiled { vec![1; n] } else { random.sizes(n, 1, 2) };
        let pads: Vec<(i64, i64)> = (0..n).map(|_| (random.within(-1, 4), random.within(-1, 4))).collect();
        let spatial: Vec<usize> = (0..n)
            .map(|d| {
                let least = (window[d] as i64 - 1) * dilation[d] as i64 + 1 - pads[d].0 - pads[d].1;
                (least.max(2) + random.within(0, 7)) as usize
            })
            .collect();
        let layouts = LAYOUTS[n - 1][usize::from(random.within(0, 3) == 0)];
        fn shape(layout: &str, outer: [(char, usize); 2], spatial: &[usize]) -> Vec<usize> {
            let mut spatial = spatial.iter();
            fn size(name: char, outer: &[(char, usize); 2]) -> Option<usize> {
                outer.iter().find(|o| o.0 == name).map(|o| o.1)
            }
            layout
                .chars()
                .map(|name| size(name, &outer).unwrap_or_else(|| *spatial.next().unwrap()))
                .collect::<Vec<_>>()
        }
        Case {
            x: shape(layouts[0], [('N', random.within(1, 3) as usize), ('C', features[0])], &spatial),
            kernel: shape(layouts[1], [('I', features[0] / groups), ('O', features[1])], &window),
            stride: if tiled { vec![1; n] } else { random.sizes(n, 1, 3) },
            pads,
            dilation,
            groups,
            layouts,
        }
    }

    /// The convolution, of an image that is padded before if XLA computes it.
    fn padded(&self, x: &Array, kernel: &Array) -> Array {
        if std::env::var(VARIABLE).as_deref() != Ok("xla") {
            return self.apply(x, kernel);
        }
        let mut pads = self.pads.iter().peekable();
        let config = self.layouts[0].chars().map(|name| match pads.next_if(|_| !matches!(name, 'N' | 'C')) {
            Some(pad) => (pad.0, pad.1, 0),
            None => (0, 0, 0),
        });
        let case = Case {
            x: Vec::new(),
            kernel: Vec::new(),
            stride: self.stride.clone(),
            pads: vec![(0, 0); self.pads.len()],
            dilation: self.dilation.clone(),
            ..*self
        };
        case.apply(&lax::pad(x, 0.0f32, &config.collect::<Vec<_>>()), kernel)
    }

    fn apply(&self, x: &Array, kernel: &Array) -> Array {
        let [image, filter, result] = self.layouts;
        let options = ConvOptions::new().dimension_numbers(image, filter, result);
        let options = options.rhs_dilation(&self.dilation).feature_group_count(self.groups);
        lax::conv_general_dilated(x, kernel, &self.stride, Padding::Explicit(self.pads.clone()), options)
    }
}

/// Prints an array's bits as a number: signs of zeros and of NaN do not count.
fn print(what: &str, x: &Array) {
    let mut hash = DefaultHasher::new();
    // Converted here, because each shape of an eager conversion would be a program.
    let values: Vec<f64> = x.to_vec::<f32>().unwrap().into_iter().map(f64::from).collect();
    values.iter().for_each(|x| if x.is_nan() { f64::NAN } else { x + 0.0 }.to_bits().hash(&mut hash));
    let nan = values.iter().filter(|x| x.is_nan()).count();
    println!("{what} {:?} {:x} nan {nan} sum {}", x.shape(), hash.finish(), values.iter().sum::<f64>());
}

/// `x` with NaN and infinities at three elements.
fn odd(random: &mut Random, x: &Array) -> Array {
    let mut values = x.to_vec::<f32>().unwrap();
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let index = random.within(0, values.len() as i64 - 1) as usize;
        values[index] = value;
    }
    Array::from_vec(values, x.shape()).unwrap()
}

/// The cases run in separate processes with and without the kernels, which must print the same.
#[test]
#[ignore = "the tests below run it"]
fn prints_convolutions_of_whole_numbers() {
    common::quick::setup();
    let random = &mut Random(7);
    for i in 0..32 {
        let case = &Case::random(random, i >= 24);
        if i % one_of(8) != 0 {
            continue;
        }
        println!("{i} {case:?}");
        let (x, w) = (random.whole(&case.x), random.whole(&case.kernel));
        let f = |x: Array, w: Array| case.apply(&x, &w);
        let result = eval_shape(f, (&x, &w)).unwrap();
        let ct = random.whole(result.shape());
        let argnums = (Arg::<0>, Arg::<1>);
        let loss = |x: Array, w: Array, ct: Array| (f(x, w) * ct).sum(..);
        let passes = jit(|x: Array, w: Array, ct: Array| -> Result<(Array, Array, Array)> {
            let (dx, dw) = grad(loss).argnums(argnums).call((&x, &w, ct))?;
            Ok((f(x, w), dx, dw))
        });
        let (y, dx, dw) = passes.call((&x, &w, &ct)).unwrap();
        print("value", &y);
        print("dx", &dx);
        print("dw", &dw);
        if i % 3 == 0 {
            // What is not finite: in the image, in the filter, and in the cotangent.
            let f = |x: Array, w: Array| case.padded(&x, &w);
            print("odd image", &jit(f).call((&odd(random, &x), &w)).unwrap());
            print("odd filter", &jit(f).call((&x, &odd(random, &w))).unwrap());
            let gradients = jit(grad(|x: Array, w: Array, ct: Array| (f(x, w) * ct).sum(..)).argnums(argnums));
            let (dx, dw) = gradients.call((&x, &w, &odd(random, &ct))).unwrap();
            print("odd dx", &dx);
            // With groups XLA leaves out padding, also of an image that is padded before.
            if case.groups == 1 {
                print("odd dw", &dw);
            }
        }
        if i % 6 == 0 {
            // The gradient of a gradient, tangents, and each way of mapping.
            let slope = |w: Array| grad(|x: Array| (f(x, w.clone()) * &ct).square().sum(..)).call(&x);
            let second = jit(grad(move |w: Array| slope(w).map(|dx| dx.sum(..)).unwrap()));
            print("second", &second.call(&w).unwrap());
            let (xs, ws) =
                (random.whole(&[&[3], &case.x[..]].concat()), random.whole(&[&[3], &case.kernel[..]].concat()));
            print("images", &jit(vmap(|x: Array| f(x, w.clone()))).call(&xs).unwrap());
            print("filters", &jit(vmap(|w: Array| f(x.clone(), w))).call(&ws).unwrap());
            print("both", &jit(vmap(f)).call((&xs, &ws)).unwrap());
            let gradient = grad(|w: Array, x: Array| (f(x, w) * &ct).sum(..));
            print("dw of each", &jit(vmap(gradient)).call((&ws, &xs)).unwrap());
        }
    }
}

/// The output of a process that computes convolutions with these kernels.
fn printed_with(kernels: &str) -> String {
    let mut command = child::command("convolutions::prints_convolutions_of_whole_numbers");
    child::run(command.env(VARIABLE, kernels)).out
}

#[test]
fn convolution_kernels_equal_xla() {
    let (kernels, xla) = (printed_with("all"), printed_with("xla"));
    let [kernels, xla] =
        [&kernels, &xla].map(|text| text.lines().filter(|line| !line.starts_with("test result")).collect::<Vec<_>>());
    assert!(xla.len() == kernels.len() && xla.len() > 32 * 4 / one_of(8), "{xla:?}");
    let mut case = "";
    for (found, want) in kernels.into_iter().zip(xla) {
        case = if want.contains("Case") { want } else { case };
        assert_eq!(found, want, "{case}");
    }
}

fn same(x: &Array, w: &Array, groups: usize) -> Array {
    let options = ConvOptions::new().channels_last(2).feature_group_count(groups);
    lax::conv_general_dilated(x, w, [1, 1], Padding::Same, options)
}

/// The convolution and its gradients, of noise.
fn all_passes(groups: usize) -> impl Fn(Array, Array, Array) -> (Array, Array, Array) {
    move |x, w, ct| {
        fn loss(x: Array, w: Array, ct: Array, groups: usize) -> Array {
            (same(&x, &w, groups) * ct).sum(..)
        }
        let (dx, dw) = grad(|x: Array, w: Array, ct: Array| loss(x, w, ct, groups))
            .argnums((Arg::<0>, Arg::<1>))
            .call((&x, &w, &ct))
            .unwrap();
        (same(&x, &w, groups), dx, dw)
    }
}

/// The values of a result and its gradients.
fn bits((y, dx, dw): (Array, Array, Array)) -> [Vec<f32>; 3] {
    [y, dx, dw].map(|x| x.to_vec::<f32>().unwrap())
}

#[test]
#[ignore = "the test below runs it"]
fn in_a_process_with_the_kernels() {
    common::quick::setup();
    let random = &mut Random(3);
    // The kernels' own tests have all of these.
    let cases = [
        (24, 1, ["shardax_convolution", "shardax_filter_gradient"]),
        (3, 1, ["shardax_convolution", "shardax_filter_gradient"]),
        (32, 1, ["shardax_winograd_convolution", "shardax_winograd_filter_gradient"]),
        (40, 40, ["shardax_convolution", "shardax_depthwise_filter_gradient"]),
        (24, 3, ["shardax_grouped_convolution", "shardax_grouped_filter_gradient"]),
    ];
    for (features, groups, names) in cases.into_iter().step_by(one_of(2)) {
        let (x, w) = (random.noise(&[4, 24, 24, features]), random.noise(&[3, 3, features / groups, features]));
        let ct = random.noise(&[4, 24, 24, features]);
        let passes = jit(all_passes(groups));
        let text = passes.lower((&x, &w, &ct)).unwrap().as_text().to_string();
        assert_eq!(text.matches(names[1]).count(), 1, "{text}");
        // The convolution, and its gradient with respect to the image.
        assert_eq!(text.matches(names[0]).count(), if groups == features { 0 } else { 2 }, "{text}");
        // The same bits each time, whether one device has all threads or each of several devices has one.
        let once = bits(passes.call((&x, &w, &ct)).unwrap());
        assert_eq!(once, bits(passes.call((&x, &w, &ct)).unwrap()));
        for devices in [8, 4, 2].into_iter().step_by(one_of(3)) {
            let mesh = Mesh::new(shardax::devices().unwrap()[..devices].to_vec(), [("i", devices)]).unwrap();
            fn add(x: Array) -> Array {
                x.expand_dims(0)
            }
            let per_device = shard_map(
                |x: Array, w: Array, ct: Array| {
                    let (y, dx, dw) = all_passes(groups)(x, w, ct);
                    (add(y), add(dx), add(dw))
                },
                &mesh,
            );
            let per_device =
                jit(per_device.in_specs((P![], P![], P![])).out_specs((P!["i"], P!["i"], P!["i"])).check_vma(false));
            let result = bits(per_device.call((&x, &w, &ct)).unwrap());
            for (result, once) in result.iter().zip(&once) {
                assert!(result.chunks(once.len()).all(|part| part == once), "{features} features, {devices} devices");
            }
        }
        // Operands that are split: the compiler partitions XLA's convolution.
        let (x, w) = (random.whole(&[8, 9, 9, features]), random.whole(&[3, 3, features / groups, features]));
        let ct = random.whole(&[8, 9, 9, features]);
        let split = NamedSharding::new(&make_mesh([("i", 8)]).unwrap(), P!["i"]);
        let [x_split, ct_split] = [&x, &ct].map(|x| device_put(x, &split).unwrap());
        assert_eq!(bits(passes.call((&x_split, &w, &ct_split)).unwrap()), bits(passes.call((&x, &w, &ct)).unwrap()));
    }
    // A requested precision applies to the sums of products.
    let (x, w) = (random.noise(&[1, 8, 8, 32]), random.noise(&[3, 3, 32, 32]));
    for (precision, name) in
        [(Precision::Default, "shardax_winograd_convolution"), (Precision::Highest, "shardax_convolution")]
    {
        let precise = jit(move |x: Array, w: Array| {
            let options = ConvOptions::new().channels_last(2).precision(precision);
            lax::conv_general_dilated(&x, &w, [1, 1], Padding::Same, options)
        });
        let text = precise.lower((&x, &w)).unwrap().as_text().to_string();
        assert_eq!(text.matches(name).count(), 1, "{text}");
    }
    // Each kernel is the one that was passed, also where it takes the memory of the one before.
    let (x, f) = (random.whole(&[2, 9, 9, 16]), jit(|x: Array, w: Array| same(&x, &w, 1)));
    let exact = jit(|x: Array, w: Array| same(&x.astype(DType::F64), &w.astype(DType::F64), 1));
    for _ in 0..20 {
        let w = random.whole(&[3, 3, 16, 16]);
        assert_eq!(floats(&f.call((&x, &w)).unwrap()), floats(&exact.call((&x, &w)).unwrap()));
    }
    // What is empty, and other dtypes.
    for (images, inputs, outputs) in [(0, 4, 4), (2, 0, 4), (2, 4, 0)] {
        let (x, w) = (zeros([images, 5, 5, inputs]), zeros([3, 3, inputs, outputs]));
        let y = f.call((&x, &w)).unwrap();
        assert_eq!((y.shape(), floats(&y)), (&[images, 5, 5, outputs][..], vec![0.0; images * 25 * outputs]));
        let dw = grad(|w: Array| same(&x, &w, 1).sum(..)).call(&w).unwrap();
        assert_eq!((dw.shape(), floats(&dw)), (w.shape(), vec![0.0; 9 * inputs * outputs]));
    }
    let w = random.whole(&[3, 3, 16, 16]);
    let want = floats(&f.call((&x, &w)).unwrap());
    let (ct, loss) = (random.whole(x.shape()), |w: Array, x: Array, ct: Array| (same(&x, &w, 1) * ct).sum(..));
    let gradient = jit(grad(loss));
    let [w_64, x_64, ct_64] = [&w, &x, &ct].map(|x| x.astype(DType::F64));
    let dw = gradient.call((&w_64, &x_64, &ct_64)).unwrap();
    for dtype in [DType::F16, DType::Bf16, DType::F64].into_iter().step_by(one_of(2)) {
        let [w, x, ct] = [&w, &x, &ct].map(|x| x.astype(dtype));
        let result = f.call((&x, &w)).unwrap();
        assert_eq!((result.dtype(), floats(&result)), (dtype, floats(&exact.call((&x, &w)).unwrap().astype(dtype))));
        let result = gradient.call((&w, &x, &ct)).unwrap();
        assert_eq!((result.dtype(), floats(&result)), (dtype, floats(&dw.astype(dtype))));
    }
    assert_eq!(want, floats(&exact.call((&x, &w)).unwrap()));
    // Other programs than this one's do not know the calls.
    let slope = grad(|w: Array, x: Array| same(&x, &w, 1).square().sum(..));
    let exported = shardax::export::export(move |w: Array, x: Array| slope.call((&w, &x)).unwrap(), (&w, &x)).unwrap();
    assert!(!exported.mlir_module("cpu").unwrap().contains("shardax_"));
    // Of a compiled program that is loaded.
    let slope = jit(grad(|w: Array, x: Array| same(&x, &w, 1).square().sum(..)));
    let want = floats(&slope.call((&w, &x)).unwrap());
    let lowered = slope.lower((&w, &x)).unwrap();
    assert!(lowered.as_text().contains("shardax_winograd_filter_gradient"));
    let bytes = lowered.compile().unwrap().serialize().unwrap();
    let loaded = Compiled::load(&lowered, &bytes).unwrap();
    assert_eq!(floats(&loaded.call((&w, &x)).unwrap()), want);
}

#[test]
fn the_kernels_repeat_their_bits_on_any_number_of_devices() {
    let mut command = child::command("convolutions::in_a_process_with_the_kernels");
    child::run(command.env(VARIABLE, "all"));
}
