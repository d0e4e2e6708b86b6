//! Spectra of the segments of a signal.

use super::{Trend, detrend};
use crate::core::array::Array;
use crate::core::program::trace::at_caller;
use crate::dtype::DType;
use crate::error::{Result, err};
use crate::fft::FftOptions;
use crate::fft::helpers::{fftfreq_dtype, rfftfreq_dtype};
use crate::ops::index::Ellipsis;
use crate::ops::lax;
use crate::ops::numpy::{PadMode, PadOptions, ReflectType, conj, promote_dtypes, to_inexact, where_, zeros_dtype};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::composite::composite1;
use crate::shape::{AxisNumber, normalize_axis};

/// The values that a signal is continued with by half a segment on each side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Boundary {
    /// Zeros.
    Zeros,
    /// The element at the end.
    Constant,
    /// The elements mirrored at the end.
    Even,
    /// The elements mirrored at the point of the end.
    Odd,
}

/// The unit of a spectrum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scaling {
    /// Squared units of the signal per unit of frequency.
    Density,
    /// Squared units of the signal.
    Spectrum,
}

/// The average of the segments' spectra.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Average {
    /// The mean.
    #[default]
    Mean,
    /// The median, divided by its bias.
    Median,
}

/// The options of [`stft`], [`istft`], [`csd`] and [`welch`].
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::scipy::signal::SpectralOptions;
/// // A tone of 50 Hz, sampled at 400 Hz.
/// let tone = (arange(0..400).astype(DType::F32) * (2.0 * std::f32::consts::PI * 50.0 / 400.0)).sin();
/// let (frequencies, density) = SpectralOptions::new().fs(400.0).nperseg(80).welch(&tone)?;
/// assert_eq!(frequencies.get(density.argmax(0)).item::<f32>()?, 50.0);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct SpectralOptions {
    fs: f64,
    window: Option<Array>,
    nperseg: Option<usize>,
    noverlap: Option<usize>,
    nfft: Option<usize>,
    detrend: Option<Option<Trend>>,
    onesided: bool,
    scaling: Option<Scaling>,
    boundary: Option<Option<Boundary>>,
    padded: Option<bool>,
    average: Average,
    axis: i32,
}

impl Default for SpectralOptions {
    fn default() -> Self {
        SpectralOptions {
            fs: 1.0,
            window: None,
            nperseg: None,
            noverlap: None,
            nfft: None,
            detrend: None,
            onesided: true,
            scaling: None,
            boundary: None,
            padded: None,
            average: Average::Mean,
            axis: -1,
        }
    }
}

/// The parameters that identify the composite of a spectrum.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Segments {
    length: usize,
    step: usize,
    nfft: usize,
    trend: Option<Trend>,
    two_sided: bool,
    scaling: Scaling,
    boundary: Option<Boundary>,
    padded: bool,
    /// The average of spectral densities; `None` for the spectra themselves.
    average: Option<Average>,
    /// The bits of the sampling frequency.
    fs: u64,
}

impl SpectralOptions {
    /// The defaults.
    pub fn new() -> Self {
        SpectralOptions::default()
    }

    /// The sampling frequency. Default 1.
    pub fn fs(mut self, fs: f64) -> Self {
        self.fs = fs;
        self
    }

    /// The window, one value for each element of a segment. Default: a periodic Hann window of
    /// [`nperseg`](Self::nperseg) elements.
    pub fn window(mut self, window: impl ArrayLike) -> Self {
        self.window = Some(window.into_array());
        self
    }

    /// The number of elements of a segment. Default: that of the window, or 256 or the whole signal where that is shorter;
    /// for [`istft`] it follows from the spectrum.
    pub fn nperseg(mut self, nperseg: usize) -> Self {
        self.nperseg = Some(nperseg);
        self
    }

    /// The number of elements that a segment has in common with the next. Default: half of a segment.
    pub fn noverlap(mut self, noverlap: usize) -> Self {
        self.noverlap = Some(noverlap);
        self
    }

    /// The number of elements of the transform: segments are padded with zeros. Default: that of a segment.
    pub fn nfft(mut self, nfft: usize) -> Self {
        self.nfft = Some(nfft);
        self
    }

    /// The trend that is removed from each segment. Default: none for [`stft`], the mean otherwise.
    pub fn detrend(mut self, trend: Option<Trend>) -> Self {
        self.detrend = Some(trend);
        self
    }

    /// Sets whether only frequencies from 0 up are returned or given, that of a real signal. Spectra of complex signals
    /// have all. Default true.
    pub fn return_onesided(mut self, onesided: bool) -> Self {
        self.onesided = onesided;
        self
    }

    /// The unit. Default: [`Spectrum`](Scaling::Spectrum) for [`stft`], [`Density`](Scaling::Density) otherwise.
    pub fn scaling(mut self, scaling: Scaling) -> Self {
        self.scaling = Some(scaling);
        self
    }

    /// The continuation of the signal by half a segment on each side. [`istft`] only needs to know if there is one. Default:
    /// zeros for [`stft`] and [`istft`], none otherwise.
    pub fn boundary(mut self, boundary: Option<Boundary>) -> Self {
        self.boundary = Some(boundary);
        self
    }

    /// Sets whether zeros are added at the end, up to a whole segment. Default: true for [`stft`], false otherwise.
    pub fn padded(mut self, padded: bool) -> Self {
        self.padded = Some(padded);
        self
    }

    /// The average of the segments. Default: the mean.
    pub fn average(mut self, average: Average) -> Self {
        self.average = average;
        self
    }

    /// The axis of time. Default the last.
    pub fn axis(mut self, axis: impl AxisNumber) -> Self {
        self.axis = axis.axis_number();
        self
    }

    /// See [`stft`].
    #[track_caller]
    pub fn stft(&self, x: impl ArrayLike) -> Result<(Array, Array, Array)> {
        let x = x.into_array();
        at_caller(|| {
            let (trend, scaling) = (self.detrend.clone().flatten(), self.scaling.unwrap_or(Scaling::Spectrum));
            let boundary = self.boundary.unwrap_or(Some(Boundary::Zeros));
            let (params, args, axis) =
                self.prepared("stft", &[x], (trend, scaling, boundary, self.padded.unwrap_or(true)), None)?;
            let y = params.of(&args, axis)?;
            let middle = if params.boundary.is_some() { 0.0 } else { params.length as f64 / 2.0 };
            let real = y.dtype().real();
            let count = counted(last(&y)).astype(real);
            let times = (count * params.step as f64 + middle) / self.fs;
            Ok((params.frequencies(self.fs, real), times, y))
        })
    }

    /// See [`csd`].
    #[track_caller]
    pub fn csd(&self, x: impl ArrayLike, y: impl ArrayLike) -> Result<(Array, Array)> {
        self.density("csd", &[x.into_array(), y.into_array()])
    }

    /// See [`welch`].
    #[track_caller]
    pub fn welch(&self, x: impl ArrayLike) -> Result<(Array, Array)> {
        self.density("welch", &[x.into_array()])
    }

    #[track_caller]
    fn density(&self, name: &str, signals: &[Array]) -> Result<(Array, Array)> {
        at_caller(|| {
            let trend = self.detrend.clone().unwrap_or(Some(Trend::Constant));
            let scaling = self.scaling.unwrap_or(Scaling::Density);
            let boundary = self.boundary.flatten();
            let options = (trend, scaling, boundary, self.padded.unwrap_or(false));
            let (params, args, axis) = self.prepared(name, signals, options, Some(self.average))?;
            let y = params.of(&args, axis)?;
            Ok((params.frequencies(self.fs, y.dtype().real()), y))
        })
    }

    /// The parameters, the signals and the window, and the axis of time, for checked signals of one dtype and length, with
    /// time last.
    fn prepared(
        &self,
        name: &str,
        signals: &[Array],
        (trend, scaling, boundary, padded): (Option<Trend>, Scaling, Option<Boundary>, bool),
        average: Option<Average>,
    ) -> Result<(Segments, Vec<Array>, usize)> {
        let wide = |dtype: DType| widened(to_inexact(dtype));
        let given: Vec<&Array> = signals.iter().chain(&self.window).collect();
        let mut args = promote_dtypes(&given, wide)?;
        let window = self.window.is_some().then(|| args.pop()).flatten();
        let mut axis = 0;
        for x in &mut args {
            axis = normalize_axis(self.axis as isize, x.ndim()).map_err(|e| e.context(name))?;
            *x = x.moveaxis(axis as i32, -1);
        }
        let length = args.iter().map(last).max().unwrap_or(0);
        if let Some(x) = args.iter().find(|x| x.size() == 0) {
            return Err(err!(Value, "{name} of an empty array of type {}", x.type_name())
                .help("pass an array with at least one element"));
        }
        for x in &mut args {
            let mut widths = vec![(0, 0); x.ndim()];
            widths[x.ndim() - 1].1 = length - last(x);
            *x = PadOptions::new().pad(&*x, widths, PadMode::Constant(0.0));
        }
        let nperseg = self.nperseg.or(self.window.as_ref().map(Array::size)).unwrap_or(256.min(length)).min(length);
        let window = self.window_of(name, window, nperseg, args[0].dtype())?;
        let (step, nfft) = self.steps(name, nperseg, nperseg)?;
        let two_sided = !self.onesided || args.iter().any(|x| x.dtype().is_complex());
        let fs = self.fs.to_bits();
        let params = Segments { length: nperseg, step, nfft, trend, two_sided, scaling, boundary, padded, average, fs };
        args.push(window);
        Ok((params, args, axis))
    }

    /// The window for segments of this length.
    fn window_of(&self, name: &str, given: Option<Array>, nperseg: usize, dtype: DType) -> Result<Array> {
        if nperseg == 0 {
            return Err(err!(Value, "nperseg must be a positive integer, got 0 in {name}")
                .help("pass a segment length of at least 1"));
        }
        match given {
            Some(window) if window.shape() == [nperseg] => Ok(window),
            Some(window) => Err(err!(
                Value,
                "the window of {name} must be a vector of nperseg = {nperseg} elements, got {}",
                window.type_name()
            )
            .help("leave nperseg out: it is the length of the window, at most that of the signal")),
            None if nperseg == 1 => Ok(zeros_dtype(1, dtype.real()) + 1),
            None => {
                let angle = counted(nperseg).astype(dtype.real()) * (std::f64::consts::PI / nperseg as f64);
                Ok(angle.sin().square())
            }
        }
    }

    /// The distance of segments, and the number of elements of their transform.
    fn steps(&self, name: &str, nperseg: usize, nfft: usize) -> Result<(usize, usize)> {
        let (overlap, nfft) = (self.noverlap.unwrap_or(nperseg / 2), self.nfft.unwrap_or(nfft));
        if overlap >= nperseg {
            return Err(err!(Value, "noverlap must be less than nperseg, got {overlap} and {nperseg} in {name}")
                .help("segments begin nperseg - noverlap elements apart"));
        }
        if nfft < nperseg {
            return Err(err!(
                Value,
                "nfft must be greater than or equal to nperseg, got {nfft} and {nperseg} in {name}"
            )
            .help("pass an `nfft` of at least `nperseg`, or leave it out to use `nperseg`"));
        }
        Ok((nperseg - overlap, nfft))
    }

    /// See [`istft`].
    #[track_caller]
    pub fn istft(&self, z: impl ArrayLike) -> Result<(Array, Array)> {
        let z = z.into_array();
        at_caller(|| {
            z.check()?;
            if z.ndim() < 2 {
                return Err(err!(Value, "Input stft must be at least 2d, got {}", z.type_name())
                    .help("the last two dimensions are those of frequencies and segments"));
            }
            let real = widened(to_inexact(z.dtype())).real();
            let z = z.astype(if real.bits() == 64 { DType::Complex128 } else { DType::Complex64 });
            let count = z.shape()[z.ndim() - 2];
            let default = if self.onesided { 2 * count.saturating_sub(1) } else { count };
            let nperseg = self.nperseg.or(self.window.as_ref().map(Array::size)).unwrap_or(default);
            let odd = usize::from(self.onesided && nperseg == default + 1);
            let (step, nfft) = self.steps("istft", nperseg, default + odd)?;
            let given = self.window.as_ref().map(|window| window.astype(real));
            let window = self.window_of("istft", given, nperseg, real)?;
            let boundary = !matches!(self.boundary, Some(None));
            let params = (nperseg, step, nfft, self.onesided, boundary);
            let x = composite1("istft", params, &[z, window], |params, args| {
                Ok(vec![inverse(*params, &args[0], &args[1])])
            })?;
            let times = counted(last(&x)).astype(real) / self.fs;
            Ok((times, x))
        })
    }
}

fn widened(dtype: DType) -> DType {
    if dtype.bits() < 32 { DType::F32 } else { dtype }
}

fn last(x: &Array) -> usize {
    x.shape().last().copied().unwrap_or(0)
}

/// `0, 1, …, n - 1`, int32.
fn counted(n: usize) -> Array {
    lax::iota(DType::I32, &[n], 0)
}

/// The places of the elements of `count` segments, a row for each.
fn places(count: usize, length: usize, step: usize) -> Array {
    counted(count).expand_dims(1) * step as i32 + counted(length)
}

impl Segments {
    fn frequencies(&self, fs: f64, dtype: DType) -> Array {
        let spacing = 1.0 / self.nfft as f64;
        let places = match self.two_sided {
            true => fftfreq_dtype(self.nfft, spacing, DType::F32),
            false => rfftfreq_dtype(self.nfft, spacing, DType::F32),
        };
        // Of spacing 1 / n they are whole numbers.
        places.round().astype(dtype) / (self.nfft as f64 / fs)
    }

    /// The spectra of the segments, or their average, with frequencies at `axis`.
    fn of(&self, args: &[Array], axis: usize) -> Result<Array> {
        composite1("spectra", (self.clone(), axis), args, |(params, axis), args| {
            let (window, signals) = args.split_last().ok_or_else(|| err!(Runtime, "spectra of nothing"))?;
            let all: Vec<Array> = signals.iter().map(|x| params.transforms(x, window)).collect();
            let squares = match all.as_slice() {
                [x] if params.average.is_none() => x.clone(),
                [x] => x.real().square() + x.imag().square(),
                all => conj(&all[0]) * &all[1],
            };
            let scale = match params.scaling {
                Scaling::Density => 1.0 / (window.square().sum(..) * f64::from_bits(params.fs)),
                Scaling::Spectrum => 1.0 / window.sum(..).square(),
            };
            let Some(average) = params.average else {
                return Ok(vec![(squares * scale.sqrt()).moveaxis(-1, *axis as i32)]);
            };
            let mut density = squares * scale;
            if !params.two_sided {
                // Each frequency but the first, and the last of an even number, is there for its negative too.
                let place = counted(last(&density));
                let end = if params.nfft.is_multiple_of(2) { last(&density) as i32 - 1 } else { i32::MAX };
                let twice = place.greater(0) & place.less(end);
                density = where_(twice, &density * 2, &density);
            }
            let density = density.moveaxis(-1, *axis as i32);
            Ok(vec![match average {
                Average::Mean => density.mean(-1),
                Average::Median => {
                    let bias = median_bias(last(&density));
                    let median = |x: Array| crate::ops::numpy::median(x, -1) / bias;
                    match density.dtype().is_complex() {
                        true => lax::complex(&median(density.real()), &median(density.imag())),
                        false => median(density),
                    }
                }
            }])
        })
    }

    /// The transforms of the segments of `x`: `[.., segments, frequencies]`.
    fn transforms(&self, x: &Array, window: &Array) -> Array {
        let mut x = x.clone();
        let mut pad = |before: usize, after: usize, mode, options: PadOptions| {
            let mut widths = vec![(0, 0); x.ndim()];
            widths[x.ndim() - 1] = (before, after);
            x = options.pad(&x, widths, mode);
            last(&x)
        };
        let half = self.length / 2;
        let length = match self.boundary {
            None => pad(0, 0, PadMode::Constant(0.0), PadOptions::new()),
            Some(Boundary::Zeros) => pad(half, half, PadMode::Constant(0.0), PadOptions::new()),
            Some(Boundary::Constant) => pad(half, half, PadMode::Edge, PadOptions::new()),
            Some(Boundary::Even) => pad(half, half, PadMode::Reflect, PadOptions::new()),
            Some(Boundary::Odd) => pad(half, half, PadMode::Reflect, PadOptions::new().reflect_type(ReflectType::Odd)),
        };
        if self.padded {
            let rest = (length - self.length) % self.step;
            pad(0, (self.step - rest) % self.step, PadMode::Constant(0.0), PadOptions::new());
        }
        let count = (last(&x) - self.length) / self.step + 1;
        let mut segments = x.take(places(count, self.length, self.step), -1);
        if let Some(trend) = &self.trend {
            segments = detrend(segments, -1, trend.clone());
        }
        let segments = segments * window;
        let options = FftOptions::new().n(self.nfft);
        if self.two_sided { options.fft(segments) } else { options.rfft(segments) }
    }
}

/// The expected median of `n` exponentially distributed numbers of mean 1.
fn median_bias(n: usize) -> f64 {
    let term = |i: usize| 1.0 / (2 * i + 1) as f64 - 1.0 / (2 * i) as f64;
    1.0 + (1..=n.saturating_sub(1) / 2).map(term).sum::<f64>()
}

/// The signal whose segments have these spectra, `[.., frequencies, segments]`.
fn inverse(
    (length, step, nfft, onesided, boundary): (usize, usize, usize, bool, bool),
    z: &Array,
    window: &Array,
) -> Array {
    let z = z.swapaxes(-1, -2);
    let options = FftOptions::new().n(nfft);
    let segments = if onesided { options.irfft(z) } else { options.ifft(z) };
    let rank = segments.ndim();
    let segments = lax::slice_in_dim(&segments, 0, length, rank - 1) * window * window.sum(..);
    let count = segments.shape()[rank - 2];
    let places = places(count, length, step);
    let size = step * count.saturating_sub(1) + length;
    let mut shape = segments.shape().to_vec();
    shape.truncate(rank - 2);
    shape.push(size);
    let mut x = zeros_dtype(shape, segments.dtype()).at((Ellipsis, places.clone())).add(&segments);
    let squares = window.square().broadcast_to([count, length]);
    let mut norm = zeros_dtype(size, window.dtype()).at(places).add(squares);
    if boundary && length > 1 {
        let half = length / 2;
        let end = size.saturating_sub(half).max(half);
        x = lax::slice_in_dim(&x, half, end, x.ndim() - 1);
        norm = lax::slice_in_dim(&norm, half, end, 0usize);
    }
    x / where_(norm.greater(1e-10), &norm, 1.0)
}

/// The short-time Fourier transform: the frequencies, the times of the segments' middles, and the spectra,
/// `[.., frequencies, segments]`, complex. [`SpectralOptions`] has options.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::scipy::signal::SpectralOptions;
/// let x = array([1.0f32, 2.0, 3.0, 2.0, 1.0, 0.0, 1.0, 2.0]);
/// let options = SpectralOptions::new().nperseg(4);
/// let (frequencies, times, spectra) = options.stft(&x)?;
/// assert_eq!(frequencies.to_vec::<f32>()?, [0.0, 0.25, 0.5]);
/// assert_eq!(times.to_vec::<f32>()?, [0.0, 2.0, 4.0, 6.0, 8.0]);
/// assert_eq!(spectra.shape(), [3, 5]);
/// let (_, back) = options.istft(spectra)?;
/// assert!(allclose(back, x, 1e-5, 1e-5)?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// Fails for an empty signal, and for segments, windows and transforms whose lengths do not fit.
#[track_caller]
pub fn stft(x: impl ArrayLike) -> Result<(Array, Array, Array)> {
    SpectralOptions::new().stft(x)
}

/// The inverse of [`stft`], of spectra `[.., frequencies, segments]`: the times, and the signal, `[.., times]`.
/// [`SpectralOptions`] has options, which are those that the spectra were made with.
///
/// Fails for fewer than two dimensions, and for lengths that do not fit.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::scipy::signal::SpectralOptions;
/// let x = array([1.0f32, 2.0, 3.0, 2.0, 1.0, 0.0, 1.0, 2.0]);
/// let options = SpectralOptions::new().nperseg(4);
/// let (times, y) = options.istft(options.stft(&x)?.2)?;
/// assert_eq!(times.shape(), [8]);
/// assert!(allclose(y, x, 1e-5, 1e-5)?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn istft(z: impl ArrayLike) -> Result<(Array, Array)> {
    SpectralOptions::new().istft(z)
}

/// The cross spectral density of two signals by Welch's method: the frequencies, and the mean over the segments of the
/// products of their spectra, complex. The shorter signal is padded with zeros. [`SpectralOptions`] has options.
///
/// Fails as [`stft`] does, and for batches of different shapes.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::scipy::signal::SpectralOptions;
/// let x = array([1.0f32, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0]);
/// let (frequencies, density) = SpectralOptions::new().nperseg(4).csd(&x, &x)?;
/// assert_eq!(frequencies.to_vec::<f32>()?, [0.0, 0.25, 0.5]);
/// assert!(allclose(real(density), array([0.0f32, 4.0 / 3.0, 8.0 / 3.0]), 1e-5, 1e-5)?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn csd(x: impl ArrayLike, y: impl ArrayLike) -> Result<(Array, Array)> {
    SpectralOptions::new().csd(x, y)
}

/// The power spectral density of a signal by Welch's method: the frequencies, and the mean over the segments of the
/// squares of their spectra, real. [`SpectralOptions`] has options.
///
/// Fails as [`stft`] does.
#[track_caller]
pub fn welch(x: impl ArrayLike) -> Result<(Array, Array)> {
    SpectralOptions::new().welch(x)
}
