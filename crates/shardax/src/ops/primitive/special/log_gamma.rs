//! The logarithm of the gamma function, and its derivative, to the last digits of float32 and float64: also next to the roots
//! at 1, 1.46 and 2, which the expansions of StableHLO's `chlo.lgamma` and `chlo.digamma` lose.

use std::f64::consts::PI;

use super::{chebyshev, constant};
use crate::core::array::Array;
use crate::dtype::DType;
use crate::ops::primitive::unary::{ABS, COS, LOG, ROUND, SIN};
use crate::ops::select::where_;

/// From this argument on, Stirling's series has all digits.
const MIN_ARGUMENT_OF_ASYMPTOTIC_SERIES: f64 = 8.0;

/// Chebyshev coefficients of `log Γ(1 + s) / s` for s from -¼ to ½.
const COEFFICIENTS_AT_ONE: [f64; 22] = [
    -0.503_407_120_654_052,
    0.283_005_145_982_568_6,
    -0.023_572_026_658_857_877,
    0.002_723_287_927_727_127,
    -0.000_357_519_778_983_831_26,
    5.011_316_362_608_742_4e-5,
    -7.303_083_203_820_688e-6,
    1.091_858_188_646_716e-6,
    -1.662_203_073_447_879e-7,
    2.564_974_678_216_458_3e-8,
    -4.000_152_293_610_898e-9,
    6.291_855_942_759_107e-10,
    -9.966_697_642_560_507e-11,
    1.588_238_684_548_341e-11,
    -2.543_915_212_597_065e-12,
    4.092_785_350_442_227e-13,
    -6.610_401_697_180_926e-14,
    1.071_357_455_038_678_7e-14,
    -1.741_710_856_606_784_3e-15,
    2.839_328_750_197_434e-16,
    -4.640_196_356_328_904_6e-17,
    7.600_420_059_560_383e-18,
];

/// Chebyshev coefficients of `log Γ(2 + s) / s` for s from -½ to ¾.
const COEFFICIENTS_AT_TWO: [f64; 20] = [
    0.449_956_620_949_089,
    0.194_889_135_111_691_26,
    -0.012_241_630_375_398_674,
    0.001_123_923_112_572_209,
    -0.000_121_177_143_595_345_64,
    1.425_097_969_153_379_6e-5,
    -1.767_412_507_328_751_7e-6,
    2.270_230_873_231_515_2e-7,
    -2.988_450_811_472_364_6e-8,
    4.004_857_573_384_54e-9,
    -5.439_990_674_066_314e-10,
    7.467_629_216_647_432e-11,
    -1.033_770_575_358_526_6e-11,
    1.440_972_723_481_529_9e-12,
    -2.020_134_819_781_965_5e-13,
    2.845_893_468_954_279_5e-14,
    -4.026_012_834_893_851e-15,
    5.716_304_481_287_189e-16,
    -8.142_350_533_178_055e-17,
    1.163_116_083_868_561_5e-17,
];

/// Chebyshev coefficients of `ψ(x) / (x - root)` for x from 1 to 2.
const DIGAMMA: [f64; 23] = [
    0.983_570_260_441_567,
    -0.227_064_086_334_644_4,
    0.033_368_899_023_930_11,
    -0.005_320_077_271_596_548,
    0.000_878_865_693_782_050_5,
    -0.000_147_734_926_506_060_44,
    2.506_054_346_835_914_6e-5,
    -4.272_103_402_999_332_4e-6,
    7.302_769_272_465_923e-7,
    -1.250_288_681_355_959_4e-7,
    2.142_500_932_235_947_2e-8,
    -3.673_295_918_565_179e-9,
    6.299_717_236_108_931e-10,
    -1.080_593_028_883_266e-10,
    1.853_735_192_053_638e-11,
    -3.180_235_365_825_53e-12,
    5.456_147_570_322_795e-13,
    -9.360_993_131_036_438e-14,
    1.606_064_636_295_075e-14,
    -2.755_543_137_743_881_5e-15,
    4.727_736_178_601_912e-16,
    -8.111_484_203_465_09e-17,
    1.391_707_769_474_154e-17,
];

/// `B₂ₖ / (2k (2k - 1))` for k from 1: Stirling's series ([DLMF 5.11.1](https://dlmf.nist.gov/5.11.E1)).
const STIRLING: [f64; 9] = [
    1.0 / 12.0,
    -1.0 / 360.0,
    1.0 / 1260.0,
    -1.0 / 1680.0,
    1.0 / 1188.0,
    -691.0 / 360_360.0,
    1.0 / 156.0,
    -3617.0 / 122_400.0,
    43867.0 / 244_188.0,
];

/// The number of terms for a dtype.
fn terms(dtype: DType) -> usize {
    if dtype == DType::F64 { STIRLING.len() } else { 3 }
}

/// Returns the distance to the nearest integer. `sin(π x)` and `cos(π x)` are computed from it without a loss of digits.
fn fraction(x: &Array) -> Array {
    x - ROUND.apply(x)
}

/// `log |Γ(x)|`.
pub(crate) fn log_gamma(x: &Array) -> Array {
    let negative = x.less(0);
    let y = where_(&negative, 1 - x, x);
    // `y` lowered by an integer to at most 2.75, and the product that Γ is multiplied with in turn.
    let (mut base, mut product) = (y.clone(), constant(1.0, x));
    for _ in 0..6 {
        let above = base.greater_equal(2.75);
        let shifted = where_(&above, &base - 1, &base);
        product = where_(above, &product * &shifted, product);
        base = shifted;
    }
    // Below ¾, Γ(y) is Γ(1 + y) / y.
    let raised = y.less(0.75);
    let base = where_(&raised, &y + 1, base);
    let (one, two) = (where_(y.less(0.5), &y, &y - 1), &base - 2);
    // For y from ½ to ¾ the series at 2 is used, at 1 + y.
    let two = where_(&raised, &y - 1, two);
    let at_one = &one * chebyshev(&((&one - 0.125) / 0.375), &COEFFICIENTS_AT_ONE);
    let at_two = &two * chebyshev(&((&two - 0.125) / 0.625), &COEFFICIENTS_AT_TWO);
    let near = where_(y.less(0.5) | (y.greater_equal(0.75) & y.less(1.5)), at_one, at_two);

    let log = LOG.apply(&where_(&raised, &y, where_(y.less(MIN_ARGUMENT_OF_ASYMPTOTIC_SERIES), product, &y)));
    let inverse = 1 / &y;
    let squared = &inverse * &inverse;
    let series = STIRLING[..terms(x.dtype())].iter().rev().fold(constant(0.0, x), |sum, c| sum * &squared + *c);
    let far = (&y - 0.5) * (&log - 1) + (series * inverse + 0.5 * ((2.0 * PI).ln() - 1.0));
    let value = where_(&raised, &near - &log, where_(y.less(MIN_ARGUMENT_OF_ASYMPTOTIC_SERIES), near + &log, far));

    // Γ(x) Γ(1 - x) = π / sin(π x). Integers are poles, and minus infinity, as the limit of poles.
    let reflected = PI.ln() - LOG.apply(&ABS.apply(&SIN.apply(&(fraction(x) * PI)))) - &value;
    let reflected = where_(x.equal(f64::NEG_INFINITY), f64::INFINITY, reflected);
    where_(negative, reflected, value)
}

/// `ψ(x)`, the derivative of `log Γ(x)`: NaN at negative integers; at 0 minus the reciprocal, which has its sign.
pub(crate) fn digamma(x: &Array) -> Array {
    let negative = x.less(0);
    let y = where_(&negative, 1 - x, x);
    let raised = y.less(1);
    let (mut base, mut sum) = (where_(&raised, &y + 1, &y), constant(0.0, x));
    for _ in 0..6 {
        let above = base.greater(2);
        let shifted = where_(&above, &base - 1, &base);
        sum = where_(above, &sum + 1 / &shifted, sum);
        base = shifted;
    }
    // The root in two parts. The first part is exact in the dtype. The parts are subtracted separately, with the factor between
    // them, because XLA adds two constants in a row.
    let (root, rest) = match x.dtype() {
        DType::F64 => (1.461_632_144_968_362_2, 9.549_995_429_965_697e-17),
        _ => (1.461_632_132_530_212_4, 1.243_814_993_891_890_9e-8),
    };
    let slope = chebyshev(&(&base * 2 - 3), &DIGAMMA);
    let near = (base - root) * &slope - slope * rest;
    let near = where_(raised, &near - 1 / &y, &near + sum);

    let inverse = 1 / &y;
    let squared = &inverse * &inverse;
    let series = STIRLING[..terms(x.dtype())]
        .iter()
        .enumerate()
        .rev()
        .fold(constant(0.0, x), |sum, (k, c)| sum * &squared + *c * (2 * k + 1) as f64);
    let far = LOG.apply(&y) - inverse * 0.5 - series * squared;
    let value = where_(y.less(MIN_ARGUMENT_OF_ASYMPTOTIC_SERIES), near, far);

    // ψ(x) = ψ(1 - x) - π / tan(π x).
    let fraction = fraction(x);
    let angle = &fraction * PI;
    let reflected = &value - COS.apply(&angle) / SIN.apply(&angle) * PI;
    let reflected = where_(fraction.equal(0), constant(f64::NAN, x), reflected);
    where_(negative, reflected, value)
}
