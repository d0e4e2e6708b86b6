//! Log-mel features of sound, the input of Whisper.

use shardax::fft::rfft;
use shardax_nn::prelude::*;

use crate::error::value_error;

/// The number of samples per second.
const RATE: f64 = 16_000.0;
/// The number of samples in a frame.
const FRAME: usize = 400;
/// The number of samples between the starts of two frames.
pub(super) const HOP: usize = 160;

/// Computes the log-mel features that Whisper reads.
///
/// `sound` is `[..., samples]` at 16 kHz, with at least 201 samples. The result is `[..., samples / 160, bins]`: for each
/// frame, the logarithm of the energy in `bins` bands of the mel scale. Energies of less than `1e-8` of the loudest
/// band are set to that limit.
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
        let message = format!("log_mel: cannot compute {bins} bands from {samples} samples");
        let help = format!("pass more than {} samples, and at least one band", FRAME / 2);
        return Array::from_error(value_error(message, help), &sound);
    }
    // Frames are centered at every 160th sample. The sound is reflected at both ends.
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

/// Returns the weights of frequencies in bands, `[frequencies, bins]`. The bands are triangles of equal area, and their
/// centers are equidistant in Slaney's mel scale.
fn mel_filters(bins: usize) -> Result<Array> {
    // The scale is linear below 1 kHz, which is 15 mel, and logarithmic above.
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

/// Converts mel to hertz. Above 1 kHz, the logarithm of the frequency grows by `step` per mel.
fn hertz(mel: f64, step: f64) -> f64 {
    if mel < 15.0 { mel * 200.0 / 3.0 } else { 1000.0 * ((mel - 15.0) * step).exp() }
}
