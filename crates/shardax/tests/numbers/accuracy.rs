//! Functions to their last digits, compared with values that mpmath computed with 40 digits: also next to their roots,
//! where a formula loses digits first.

use shardax::prelude::*;
use shardax::scipy::special;

use super::common::quick::setup;
use super::floats;

const LOG_GAMMA: [(f64, f64); 27] = [
    (1.000_000_003_171_076_9e-30, 69.077_552_786_650_29),
    (0.001_000_000_047_497_451_3, 6.907_178_837_859_066),
    (0.300_000_011_920_928_96, 1.095_797_953_064_734),
    (0.490_000_009_536_743_16, 0.592_249_610_130_974_4),
    (0.600_000_023_841_857_9, 0.398_233_821_338_011_55),
    (0.740_000_009_536_743_2, 0.214_267_535_704_531_64),
    (0.759_999_990_463_256_8, 0.192_548_571_109_251_4),
    (0.999_899_983_406_066_9, 5.773_937_256_934_961e-5),
    (1.000_010_013_580_322_3, -5.779_912_953_921_403e-6),
    (1.460_000_038_146_972_7, -0.121_485_001_064_300_38),
    (1.490_000_009_536_743_2, -0.121_100_258_283_749_3),
    (1.509_999_990_463_256_8, -0.120_370_735_770_717_04),
    (1.999_989_986_419_677_7, -4.233_552_564_089_601_6e-6),
    (2.000_010_013_580_322_3, 4.233_617_232_783_478e-6),
    (2.299_999_952_316_284, 0.154_189_426_347_500_07),
    (2.740_000_009_536_743, 0.467_047_574_515_425_2),
    (2.759_999_990_463_257, 0.483_425_516_490_601_06),
    (5.5, 3.957_813_967_618_716_5),
    (7.989_999_771_118_164, 8.505_011_145_049_691),
    (8.010_000_228_881_836, 8.545_324_891_395_984),
    (30.5, 72.953_471_184_169_4),
    (10_000.0, 82_099.717_496_442_38),
    (1.000_000_015_047_466_2e30, 6.807_755_382_926_351e31),
    (-0.25, 1.589_575_312_551_186),
    (-1.5, 0.860_047_015_376_481),
    (-2.700_000_047_683_716, -0.071_407_032_131_733_55),
    (-7.300_000_190_734_863, -7.779_102_457_102_296),
];
const DIGAMMA: [(f64, f64); 19] = [
    (1.000_000_003_171_076_9e-30, -9.999_999_968_289_232e29),
    (0.001_000_000_047_497_451_3, -1_000.575_524_434_283_2),
    (0.300_000_011_920_928_96, -3.502_524_076_224_017_5),
    (0.990_000_009_536_743_2, -0.593_786_288_135_870_8),
    (1.009_999_990_463_256_8, -0.560_885_473_329_771_7),
    (1.461_599_946_022_033_7, -3.115_848_574_804_2e-5),
    (1.461_640_000_343_322_8, 7.601_401_005_351_249e-6),
    (1.700_000_047_683_715_8, 0.208_547_912_697_782_1),
    (1.990_000_009_536_743_2, 0.416_314_712_234_761_74),
    (2.009_999_990_463_257, 0.429_213_545_920_050_2),
    (3.299_999_952_316_284, 1.034_822_472_203_354_5),
    (7.989_999_771_118_164, 2.014_309_191_533_014),
    (8.010_000_228_881_836, 2.016_971_994_338_706),
    (30.5, 3.401_243_668_961_661),
    (10_000.0, 9.210_290_371_142_849),
    (1.000_000_015_047_466_2e30, 69.077_552_804_868_83),
    (-0.25, 2.914_139_120_213_527_6),
    (-1.299_999_952_316_284_2, 2.882_541_242_038_521_5),
    (-7.300_000_190_734_863, 4.337_304_453_761_273),
];
const EXPM1: [(f64, f64); 20] = [
    (1.000_000_003_171_076_9e-30, 1.000_000_003_171_076_9e-30),
    (9.999_999_747_378_752e-6, 1.000_004_974_754_289_3e-5),
    (0.100_000_001_490_116_12, 0.105_170_919_722_480_63),
    (0.340_000_003_576_278_7, 0.404_947_595_588_077_9),
    (0.349_999_994_039_535_5, 0.419_067_540_134_955_56),
    (0.400_000_005_960_464_5, 0.491_824_706_533_238_45),
    (0.699_999_988_079_071, 1.013_752_683_464_673_7),
    (1.0, 1.718_281_828_459_045_3),
    (3.5, 32.115_451_958_692_31),
    (20.0, 485_165_194.409_790_3),
    (88.5, 2.723_087_825_068_111_7e38),
    (-9.999_999_747_378_752e-6, -9.999_949_747_547_945e-6),
    (-0.100_000_001_490_116_12, -0.095_162_583_312_353_25),
    (-0.340_000_003_576_278_7, -0.288_229_679_782_879_33),
    (-0.349_999_994_039_535_5, -0.295_311_906_081_018_2),
    (-0.699_999_988_079_071, -0.503_414_690_288_832_3),
    (-1.0, -0.632_120_558_828_557_7),
    (-3.5, -0.969_802_616_577_681_5),
    (-20.0, -0.999_999_997_938_846_4),
    (-100.0, -1.0),
];

/// The distance from one number of this size to the next.
fn unit(value: f64, dtype: DType) -> f64 {
    let (digits, smallest) = if dtype == DType::F64 { (52, -1022) } else { (23, -126) };
    2f64.powi((value.abs().log2().floor() as i32).max(smallest) - digits)
}

/// Compares a function with a table of arguments and values, in units in the last place.
#[track_caller]
fn within(name: &str, f: fn(&Array) -> Array, table: &[(f64, f64)], units: f64) {
    for dtype in [DType::F32, DType::F64] {
        let x = array(table.iter().map(|(x, _)| *x).collect::<Vec<_>>()).astype(dtype);
        let eager = floats(&f(&x));
        let mapped = floats(&jit(vmap(move |x: Array| f(&x))).call(&x).expect("the function of each element"));
        for (i, (x, want)) in table.iter().enumerate() {
            for got in [eager[i], mapped[i]] {
                let error = (got - want).abs() / unit(*want, dtype);
                assert!(error <= units, "{name}({x}) in {dtype}: {got}, not {want}: {error} units");
            }
        }
    }
}

#[test]
fn log_gamma_keeps_its_digits_next_to_1_and_2() {
    setup();
    // Elsewhere below 0 the reflection cancels: -2.7 is next to a root.
    let table = LOG_GAMMA.iter().copied().filter(|(x, _)| *x != -2.700_000_047_683_716).collect::<Vec<_>>();
    within("gammaln", |x| special::gammaln(x), &table, 4.0);
    let edges = array([0.0f32, -0.0, -1.0, -7.0, f32::INFINITY, f32::NEG_INFINITY, -1e30]);
    assert!(floats(&special::gammaln(edges)).iter().all(|y| *y == f64::INFINITY));
    assert!(floats(&special::gammaln(f32::NAN))[0].is_nan());
    assert_eq!(floats(&special::gammaln(array([1.0f32, 2.0]))), [0.0, 0.0]);
    // Half precision is rounded once.
    let half = array([0.9f32, 2.1, 30.0]).astype(DType::Bf16);
    let rounded = special::gammaln(half.astype(DType::F32)).astype(DType::Bf16);
    assert_eq!(floats(&special::gammaln(half)), floats(&rounded));
}

#[test]
fn digamma_keeps_its_digits_next_to_its_root_and_is_infinite_at_0() {
    setup();
    within("digamma", |x| special::digamma(x), &DIGAMMA, 4.0);
    // In SciPy 1.18.1, the sign at 0 is the sign of its reciprocal, so `digamma(-0.0)` is +inf. JAX 0.12 returns -inf
    // for both.
    let at_zero = floats(&special::digamma(array([0.0f32, -0.0])));
    assert_eq!(at_zero, [f64::NEG_INFINITY, f64::INFINITY]);
    assert!(floats(&special::digamma(array([-1.0f32, -8.0, f32::NAN]))).iter().all(|y| y.is_nan()));
    assert_eq!(floats(&special::digamma(f32::INFINITY)), [f64::INFINITY]);
    let slope = grad(|x: Array| Ok(special::digamma(x))).call(1.5f32).expect("a slope");
    assert!((floats(&slope)[0] - 0.934_802_2).abs() < 1e-5);
}

#[test]
fn cube_roots_have_their_digits() {
    setup();
    let numbers = array([-7.0f64, -0.1, 1e-30, 1.0, 3.0, 1e-3, 1e30]);
    for (dtype, units) in [(DType::F32, 1.5 * f64::from(f32::EPSILON)), (DType::F64, 1.5 * f64::EPSILON)] {
        let numbers = numbers.astype(dtype);
        let (found, expected) = (floats(&numbers.cbrt()), floats(&numbers).into_iter().map(f64::cbrt));
        for (found, expected) in found.into_iter().zip(expected) {
            assert!((found / expected - 1.0).abs() <= units, "{dtype}: {found:e} is not {expected:e}");
        }
    }
    let edges = floats(&array([0.0f32, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN]).cbrt());
    assert_eq!(edges[..4], [0.0, 0.0, f64::INFINITY, f64::NEG_INFINITY]);
    assert!(edges[1].is_sign_negative() && edges[4].is_nan());
}

#[test]
fn expm1_keeps_its_digits() {
    setup();
    within("expm1", |x| x.expm1(), &EXPM1, 2.0);
    let edges = array([f32::INFINITY, f32::NEG_INFINITY, -0.0, 0.0, 89.0, 1e30, -1e30]);
    let got = floats(&edges.expm1());
    assert_eq!(got, [f64::INFINITY, -1.0, 0.0, 0.0, f64::INFINITY, f64::INFINITY, -1.0]);
    assert!(got[2].is_sign_negative() && got[3].is_sign_positive());
    // A NaN that is a constant of the program.
    let chosen = jit(|p: Array| shardax::numpy::where_(p, 0.5f32, f32::NAN).expm1()).call(array([true, false]));
    assert!(floats(&chosen.expect("values"))[1].is_nan());
}

/// The largest error of float32 compared with float64, whose values the tables above pin.
#[test]
fn float32_is_within_a_few_units_of_float64() {
    setup();
    let cases: [(&str, fn(&Array) -> Array, f64, f64, f64); 5] = [
        ("gammaln", |x| special::gammaln(x), 0.001, 10.0, 4.0),
        ("expm1", |x| x.expm1(), -3.0, 3.0, 2.0),
        ("digamma", |x| special::digamma(x), 0.001, 10.0, 4.0),
        ("expn(2, x)", |x| special::expn(2, x), 0.01, 20.0, 14.0),
        ("expn(1, x)", |x| special::expn(1, x), 0.01, 20.0, 14.0),
    ];
    for (name, f, low, high, units) in cases {
        let x = random::uniform(random::key(0), [20_000]) * (high - low) + low;
        let (got, want) = (floats(&f(&x)), floats(&f(&x.astype(DType::F64))));
        fn error(i: &usize, got: &[f64], want: &[f64]) -> f64 {
            (got[*i] - want[*i]).abs() / unit(want[*i], DType::F32)
        }
        let worst =
            (0..got.len()).max_by(|a, b| error(a, &got, &want).total_cmp(&error(b, &got, &want))).expect("elements");
        println!("{name}: {} units at {}", error(&worst, &got, &want), floats(&x)[worst]);
        assert!(
            error(&worst, &got, &want) <= units,
            "{name}: {} units at {}",
            error(&worst, &got, &want),
            floats(&x)[worst]
        );
    }
}

/// Values and slopes of mpmath (`log(-expm1(-exp(-x)))`, `diff`). JAX 0.12 has -∞ and a slope of NaN at 90.
#[test]
fn survival_of_gumbel_keeps_its_tail() -> Result<()> {
    setup();
    let x = array([-1.0f32, 0.0, 0.4, 3.0, 20.0, 90.0]);
    fn logsf(x: Array) -> Array {
        shardax::scipy::stats::gumbel_r::logsf(x, 0.0, 1.0)
    }
    let (values, slopes) = jvp(logsf, &x, ones([6]))?;
    let expected = array([-0.068_266_03f32, -0.458_675_15, -0.716_507_6, -3.024_790_3, -20.0, -90.0]);
    assert!(shardax::numpy::allclose(&values, expected, 1e-6, 0.0)?, "{values:?}");
    let expected = array([-0.192_046_87f32, -0.581_976_7, -0.702_006_6, -0.975_313, -1.0, -1.0]);
    assert!(shardax::numpy::allclose(&slopes, expected, 1e-6, 0.0)?, "{slopes:?}");
    Ok(())
}

/// Values and slopes of mpmath (`besselj`, `diff`). JAX 0.12 has NaN for 1.2684246 and the slopes of all but two numbers.
#[test]
fn bessel_functions_do_not_overflow() -> Result<()> {
    setup();
    let z = array([4.887111f32, 8.19873, 1.2684246, 0.0, -2.0]);
    let expected = [
        [-0.21378216f32, 0.12254277, 0.63645813, 1.0, 0.22389078],
        [-0.31279167, 0.25788317, 0.5149338, 0.0, -0.576_724_8],
        [0.08577539, -0.05963469, 0.1754684, 0.0, 0.35283403],
    ];
    let j = shardax::scipy::special::bessel_jn(&z, 2, 50);
    assert!(shardax::numpy::allclose(&j, array(expected), 2e-6, 2e-7)?, "{j:?}");
    let slopes = jvp(|z: Array| shardax::scipy::special::bessel_jn(z, 1, 50), &z, ones([5]))?.1;
    let expected = [
        [0.31279167f32, -0.25788317, -0.5149338, 0.0, 0.576_724_8],
        [-0.14977877, 0.09108873, 0.23049486, 0.5, -0.06447162],
    ];
    assert!(shardax::numpy::allclose(&slopes, array(expected), 2e-6, 5e-7)?, "{slopes:?}");
    Ok(())
}

/// The hazard of the exponential distribution is constant.
#[test]
fn curvature_of_the_log_survival_of_gamma_is_zero_at_shape_one() -> Result<()> {
    setup();
    fn log_survival(x: Array) -> Array {
        shardax::scipy::stats::gamma::logsf(&x, 1.0, 0.0, 1.0)
    }
    fn curvature(x: Array) -> Result<Array> {
        grad(|x: Array| grad(log_survival).call(x)).call(x)
    }
    let x = array_of([1e-300, 1e-10, 0.3, 0.999, 1.0, 1.5, 40.0, 1e300], DType::F64);
    assert_eq!(vmap(curvature).call(&x)?.to_vec::<f64>()?, [0.0; 8]);
    Ok(())
}

/// With values of mpmath: negative and infinite arguments, and slopes where one argument is 0 and the other infinite.
#[test]
fn owens_t_on_both_sides() -> Result<()> {
    fn total(h: Array, a: Array) -> Array {
        shardax::scipy::special::owens_t(h, a).sum(..)
    }
    const INF: f64 = f64::INFINITY;
    let h = array_of([-2.3, -0.7, 0.4, 3.36, -1e-3, 0.0, 0.0, -0.7], DType::F64);
    let a = array_of([-2.0, 0.5, -1.5, 1e10, 0.9, INF, -INF, -INF], DType::F64);
    let values = [
        -0.0053620501399086985,
        0.05666729595683407,
        -0.1385863337285881,
        0.00019485618129101592,
        0.1166310742020113,
        0.25,
        -0.25,
        -0.12098182611153652,
    ];
    assert!(allclose(shardax::scipy::special::owens_t(&h, &a), array_of(values, DType::F64), 1e-13, 0.0)?);
    let (by_h, by_a) = grad(total).argnums((Arg::<0>, Arg::<1>)).call((&h, &a))?;
    assert!(by_h.to_vec::<f64>()?[5..7] == [0.0, 0.0] && by_a.to_vec::<f64>()?[5..] == [0.0; 3], "{by_h} {by_a}");
    Ok(())
}
