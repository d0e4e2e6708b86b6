//! The features of sound that Whisper reads.

use shardax::fft::rfft;
use shardax_nn::prelude::*;

use crate::error::value_error;

/// Samples of a second.
const RATE: f64 = 16_000.0;
/// Samples of a frame, and from one frame to the next.
const FRAME: usize = 400;
pub(super) const HOP: usize = 160;

/// The logarithms of the energy of sound in `bins` bands of the mel scale, `[..., samples / 160, bins]`, of sound at 16 kHz
/// `[..., samples]`: the features that Whisper reads. The last 8 powers of ten below the loudest band are kept.
///
/// You must pass at least 201 samples.
///
/// ```
/// use shardax_models::log_mel;
/// use shardax_nn::prelude::*;
/// let second = (arange(0..16_000) * 0.1).sin();
/// assert_eq!(log_mel(second, 80).shape(), [100, 80]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn log_mel(sound: impl ArrayLike, bins: usize) -> Array {
    let sound = sound.into_array();
    let samples = sound.shape().last().copied().unwrap_or(0);
    if sound.check().is_err() {
        return sound;
    }
    if samples <= FRAME / 2 || bins == 0 {
        let message = format!("log_mel: {bins} bands of {samples} samples; frames have {FRAME} samples");
        return Array::from_error(value_error(message, "give more than 200 samples, and at least one band"), &sound);
    }
    // Frames are centered at every 160th sample; beyond the ends the sound is reflected.
    let last_sample = (samples - 1) as i32;
    let starts = arange(0..(samples / HOP) as i32) * HOP as i32 - FRAME as i32 / 2;
    let places = (starts.expand_dims(1) + arange(0..FRAME as i32)).abs();
    let places = minimum(&places, 2 * last_sample - &places);
    let frames = sound.astype(DType::F32).take(places, -1);
    let window = (0..FRAME).map(|i| 0.5 - 0.5 * (std::f64::consts::TAU * i as f64 / FRAME as f64).cos());
    let spectrum = rfft(frames * array(window.map(|weight| weight as f32).collect::<Vec<_>>()));
    let energy = spectrum.abs().square();
    let bands = match mel_filters(bins) {
        Ok(filters) => energy.dot(filters),
        Err(error) => return Array::from_error(error, &sound),
    };
    let log = bands.maximum(1e-10).log() / std::f64::consts::LN_10;
    let loudest = log.max_keepdims([-2, -1]);
    (maximum(log, loudest - 8.0) + 4.0) / 4.0
}

/// The weights of frequencies in triangular bands of equal area, whose centers are equidistant in Slaney's mel scale:
/// `[frequencies, bins]`.
fn mel_filters(bins: usize) -> Result<Array> {
    // Linear below 1 kHz, logarithmic above it.
    let step = 6.4f64.ln() / 27.0;
    let highest = 15.0 + (RATE / 2.0 / 1000.0).ln() / step;
    let edges: Vec<f64> = (0..bins + 2).map(|i| hertz(highest * i as f64 / (bins + 1) as f64, step)).collect();
    let frequencies = FRAME / 2 + 1;
    let mut weights = Vec::with_capacity(frequencies * bins);
    for number in 0..frequencies {
        let frequency = RATE * number as f64 / FRAME as f64;
        for edge in edges.windows(3) {
            let rising = (frequency - edge[0]) / (edge[1] - edge[0]);
            let falling = (edge[2] - frequency) / (edge[2] - edge[1]);
            weights.push((rising.min(falling).max(0.0) * 2.0 / (edge[2] - edge[0])) as f32);
        }
    }
    Array::from_vec(weights, &[frequencies, bins])
}

/// The frequency of a point of the mel scale, whose logarithm grows by `step` above 1 kHz.
fn hertz(mel: f64, step: f64) -> f64 {
    if mel < 15.0 { mel * 200.0 / 3.0 } else { 1000.0 * ((mel - 15.0) * step).exp() }
}
