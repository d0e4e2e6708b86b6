//! Spectra of the segments of a signal.

use super::{Trend, detrend};
use crate::choice::{Choice, IntoChoice, NamedOption};
use crate::core::array::Array;
use crate::core::program::trace::at_caller;
use crate::dtype::DType;
use crate::error::{Result, err};
use crate::fft::FftOptions;
use crate::fft::helpers::{fftfreq_dtype, rfftfreq_dtype};
use crate::ops::index::Ellipsis;
use crate::ops::lax;
use crate::ops::numpy::{
    PadMode, PadOptions, ReflectType, conj, median, promote_dtypes, to_inexact, where_, zeros_dtype,
};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::composite::composite1;
use crate::shape::{AxisNumber, normalize_axis};

/// The extension of a signal by half a segment on each side.
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

/// JAX's names.
impl NamedOption for Scaling {
    const KIND: &'static str = "scaling";
    const NAMES: &'static [(&'static str, Self)] = &[("density", Scaling::Density), ("spectrum", Scaling::Spectrum)];
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

/// JAX's names.
impl NamedOption for Average {
    const KIND: &'static str = "average";
    const NAMES: &'static [(&'static str, Self)] = &[("mean", Average::Mean), ("median", Average::Median)];
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
    scaling: Option<Choice<Scaling>>,
    boundary: Option<Option<Boundary>>,
    padded: Option<bool>,
    average: Choice<Average>,
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
            average: Choice::Value(Average::Mean),
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
    /// Returns the defaults.
    pub fn new() -> Self {
        SpectralOptions::default()
    }

    /// Sets the sampling frequency. Default 1.
    pub fn fs(mut self, fs: f64) -> Self {
        self.fs = fs;
        self
    }

    /// Sets the window, one value for each element of a segment. Default: a periodic Hann window of
    /// [`nperseg`](Self::nperseg) elements.
    pub fn window(mut self, window: impl ArrayLike) -> Self {
        self.window = Some(window.into_array());
        self
    }

    /// Sets the number of elements of a segment. Default: the length of the window; without a window 256, but at most
    /// the length of the signal. [`istft`] computes the default from the spectrum.
    pub fn nperseg(mut self, nperseg: usize) -> Self {
        self.nperseg = Some(nperseg);
        self
    }

    /// Sets the number of elements that neighboring segments share. Default: half of a segment.
    pub fn noverlap(mut self, noverlap: usize) -> Self {
        self.noverlap = Some(noverlap);
        self
    }

    /// Sets the number of elements of the transform; segments are padded to it with zeros. Default: the length of a
    /// segment.
    pub fn nfft(mut self, nfft: usize) -> Self {
        self.nfft = Some(nfft);
        self
    }

    /// Sets the trend that is removed from each segment. Default: none for [`stft`], the mean otherwise.
    pub fn detrend(mut self, trend: Option<Trend>) -> Self {
        self.detrend = Some(trend);
        self
    }

    /// Sets whether spectra only have the frequencies from 0 up, which determine a real signal. The spectra of complex signals always
    /// have all frequencies. Default true.
    pub fn return_onesided(mut self, onesided: bool) -> Self {
        self.onesided = onesided;
        self
    }

    /// Sets the unit. Default: [`Spectrum`](Scaling::Spectrum) for [`stft`], [`Density`](Scaling::Density) otherwise.
    pub fn scaling(mut self, scaling: impl IntoChoice<Scaling>) -> Self {
        self.scaling = Some(scaling.into_choice());
        self
    }

    /// Sets the extension of the signal by half a segment on each side. [`istft`] only needs to know whether the signal
    /// was extended. Default: zeros for [`stft`] and [`istft`], none otherwise.
    pub fn boundary(mut self, boundary: Option<Boundary>) -> Self {
        self.boundary = Some(boundary);
        self
    }

    /// Sets whether zeros are added at the end to complete the last segment. Default: true for [`stft`], false otherwise.
    pub fn padded(mut self, padded: bool) -> Self {
        self.padded = Some(padded);
        self
    }

    /// Sets the average of the segments. Default: the mean.
    pub fn average(mut self, average: impl IntoChoice<Average>) -> Self {
        self.average = average.into_choice();
        self
    }

    /// Sets the axis of time. Default the last.
    pub fn axis(mut self, axis: impl AxisNumber) -> Self {
        self.axis = axis.axis_number();
        self
    }

    /// Calls [`stft`] with these options.
    ///
    /// # Errors
    /// Returns an error if the lengths of the window, the segments and their overlap do not fit together, or if `x`
    /// has no dimension to transform.
    #[track_caller]
    pub fn stft(&self, x: impl ArrayLike) -> Result<(Array, Array, Array)> {
        let x = x.into_array();
        at_caller(|| {
            let trend = self.detrend.clone().flatten();
            let scaling = self.scaling.unwrap_or(Choice::Value(Scaling::Spectrum)).value("stft")?;
            let boundary = self.boundary.unwrap_or(Some(Boundary::Zeros));
            let (params, args, axis) =
                self.prepared("stft", &[x], (trend, scaling, boundary, self.padded.unwrap_or(true)), None)?;
            let y = params.of(&args, axis)?;
            let middle = if params.boundary.is_some() { 0.0 } else { params.length as f64 / 2.0 };
            let real = y.dtype().real();
            let count = counted(last_size(&y)).astype(real);
            let times = (count * params.step as f64 + middle) / self.fs;
            Ok((params.frequencies(self.fs, real), times, y))
        })
    }

    /// Calls [`csd`] with these options.
    ///
    /// # Errors
    /// Returns an error if the lengths of the window, the segments and their overlap do not fit together, or if the
    /// shapes of `x` and `y` do not broadcast.
    #[track_caller]
    pub fn csd(&self, x: impl ArrayLike, y: impl ArrayLike) -> Result<(Array, Array)> {
        self.density("csd", &[x.into_array(), y.into_array()])
    }

    /// Calls [`welch`] with these options.
    ///
    /// # Errors
    /// Returns an error if the lengths of the window, the segments and their overlap do not fit together.
    #[track_caller]
    pub fn welch(&self, x: impl ArrayLike) -> Result<(Array, Array)> {
        self.density("welch", &[x.into_array()])
    }

    #[track_caller]
    fn density(&self, name: &str, signals: &[Array]) -> Result<(Array, Array)> {
        at_caller(|| {
            let trend = self.detrend.clone().unwrap_or(Some(Trend::Constant));
            let scaling = self.scaling.unwrap_or(Choice::Value(Scaling::Density)).value(name)?;
            let boundary = self.boundary.flatten();
            let options = (trend, scaling, boundary, self.padded.unwrap_or(false));
            let (params, args, axis) = self.prepared(name, signals, options, Some(self.average.value(name)?))?;
            let y = params.of(&args, axis)?;
            // The density of one signal is real, also if the signal is complex.
            let y = if signals.len() == 1 { y.real() } else { y };
            Ok((params.frequencies(self.fs, y.dtype().real()), y))
        })
    }

    /// Checks and converts the signals: they have a common dtype and length, and time is their last axis. Returns the parameters, the
    /// signals followed by the window, and the axis of time.
    fn prepared(
        &self,
        name: &str,
        signals: &[Array],
        (trend, scaling, boundary, padded): (Option<Trend>, Scaling, Option<Boundary>, bool),
        average: Option<Average>,
    ) -> Result<(Segments, Vec<Array>, usize)> {
        // Signals get one dtype and one length, with time last; shorter ones are padded with zeros, as in SciPy.
        let operands: Vec<&Array> = signals.iter().chain(&self.window).collect();
        let mut args = promote_dtypes(&operands, |dtype| widened(to_inexact(dtype)))?;
        let window = self.window.is_some().then(|| args.pop()).flatten();
        let mut axis = 0;
        for x in &mut args {
            axis = normalize_axis(self.axis as isize, x.ndim()).map_err(|e| e.context(name))?;
            *x = x.moveaxis(axis as i32, -1);
        }
        let length = args.iter().map(last_size).max().unwrap_or(0);
        if let Some(x) = args.iter().find(|x| x.size() == 0) {
            return Err(err!(Value, "{name} of an empty array of type {}", x.type_name())
                .help("pass an array with at least one element"));
        }
        for x in &mut args {
            let mut widths = vec![(0, 0); x.ndim()];
            widths[x.ndim() - 1].1 = length - last_size(x);
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
    fn window_of(&self, name: &str, window: Option<Array>, nperseg: usize, dtype: DType) -> Result<Array> {
        if nperseg == 0 {
            return Err(err!(Value, "nperseg must be a positive integer, got 0 in {name}")
                .help("pass a segment length of at least 1"));
        }
        match window {
            Some(window) if window.shape() == [nperseg] => Ok(window),
            Some(window) => Err(err!(
                Value,
                "the window of {name} must be a vector of nperseg = {nperseg} elements, got {}",
                window.type_name()
            )
            .help("omit `nperseg`, because it defaults to the length of the window; a window can't be longer than the signal")),
            None if nperseg == 1 => Ok(zeros_dtype(1, dtype.real()) + 1),
            None => {
                let angle = counted(nperseg).astype(dtype.real()) * (std::f64::consts::PI / nperseg as f64);
                Ok(angle.sin().square())
            }
        }
    }

    /// The distance between the starts of neighboring segments, and the number of elements of the transform.
    fn steps(&self, name: &str, nperseg: usize, nfft: usize) -> Result<(usize, usize)> {
        let (overlap, nfft) = (self.noverlap.unwrap_or(nperseg / 2), self.nfft.unwrap_or(nfft));
        if overlap >= nperseg {
            return Err(err!(Value, "noverlap must be less than nperseg, got {overlap} and {nperseg} in {name}")
                .help("segments start nperseg - noverlap elements apart, so reduce `noverlap` or increase `nperseg`"));
        }
        if nfft < nperseg {
            return Err(err!(
                Value,
                "nfft must be greater than or equal to nperseg, got {nfft} and {nperseg} in {name}"
            )
            .help("pass an `nfft` of at least `nperseg`, or omit it to use `nperseg`"));
        }
        Ok((nperseg - overlap, nfft))
    }

    /// Calls [`istft`] with these options.
    ///
    /// # Errors
    /// Returns an error if `z` has fewer than two dimensions, or if the lengths of the window, the segments and
    /// their overlap do not fit together.
    #[track_caller]
    pub fn istft(&self, z: impl ArrayLike) -> Result<(Array, Array)> {
        let z = z.into_array();
        at_caller(|| {
            z.check()?;
            if z.ndim() < 2 {
                return Err(err!(Value, "Input stft must be at least 2d, got {}", z.type_name())
                    .help("pass a spectrum whose last two dimensions are frequencies and segments"));
            }
            let real = widened(to_inexact(z.dtype())).real();
            let z = z.astype(if real.bits() == 64 { DType::Complex128 } else { DType::Complex64 });
            // A one-sided spectrum does not tell an even number of samples from an odd one, so `nperseg` decides.
            let count = z.shape()[z.ndim() - 2];
            let default = if self.onesided { 2 * count.saturating_sub(1) } else { count };
            let nperseg = self.nperseg.or(self.window.as_ref().map(Array::size)).unwrap_or(default);
            let odd = usize::from(self.onesided && nperseg == default + 1);
            let (step, nfft) = self.steps("istft", nperseg, default + odd)?;
            let window = self.window.as_ref().map(|window| window.astype(real));
            let window = self.window_of("istft", window, nperseg, real)?;
            let boundary = !matches!(self.boundary, Some(None));
            let params = (nperseg, step, nfft, self.onesided, boundary);
            let x = composite1("istft", params, &[z, window], |params, args| {
                Ok(vec![inverse(*params, &args[0], &args[1])])
            })?;
            let times = counted(last_size(&x)).astype(real) / self.fs;
            Ok((times, x))
        })
    }
}

fn widened(dtype: DType) -> DType {
    if dtype.bits() < 32 { DType::F32 } else { dtype }
}

fn last_size(x: &Array) -> usize {
    x.shape().last().copied().unwrap_or(0)
}

/// `0, 1, …, n - 1`, int32.
fn counted(n: usize) -> Array {
    lax::iota(DType::I32, &[n], 0)
}

/// The indices of the elements of `count` segments, with one row for each segment.
fn places(count: usize, length: usize, step: usize) -> Array {
    counted(count).expand_dims(1) * step as i32 + counted(length)
}

impl Segments {
    fn frequencies(&self, fs: f64, dtype: DType) -> Array {
        let spacing = 1.0 / self.nfft as f64;
        let places = if self.two_sided {
            fftfreq_dtype(self.nfft, spacing, DType::F32)
        } else {
            rfftfreq_dtype(self.nfft, spacing, DType::F32)
        };
        // The frequencies are integers, because the spacing is 1 / n, but the division rounds.
        places.round().astype(dtype) / (self.nfft as f64 / fs)
    }

    /// The spectra of the segments, or their average, with frequencies at `axis`.
    fn of(&self, args: &[Array], axis: usize) -> Result<Array> {
        composite1("spectra", (self.clone(), axis), args, |(params, axis), args| {
            let (window, signals) = args
                .split_last()
                .ok_or_else(|| err!(Runtime, "internal error: spectra have no operands; please report this"))?;
            let spectra: Vec<Array> = signals.iter().map(|x| params.transforms(x, window)).collect();
            let squares = match spectra.as_slice() {
                [x] if params.average.is_none() => x.clone(),
                [x] => x.real().square() + x.imag().square(),
                spectra => conj(&spectra[0]) * &spectra[1],
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
                // Each frequency also stands for its negative, except 0 and, for an even size, the last frequency.
                let place = counted(last_size(&density));
                let end = if params.nfft.is_multiple_of(2) { last_size(&density) as i32 - 1 } else { i32::MAX };
                let twice = place.greater(0) & place.less(end);
                density = where_(twice, &density * 2, &density);
            }
            let density = density.moveaxis(-1, *axis as i32);
            Ok(vec![match average {
                Average::Mean => density.mean(-1),
                Average::Median => {
                    let bias = median_bias(last_size(&density));
                    if density.dtype().is_complex() {
                        let [re, im] = [density.real(), density.imag()].map(|x| median(x, -1) / bias);
                        lax::complex(&re, &im)
                    } else {
                        median(density, -1) / bias
                    }
                }
            }])
        })
    }

    /// The transforms of the segments of `x`: `[.., segments, frequencies]`.
    fn transforms(&self, x: &Array, window: &Array) -> Array {
        // Extend both ends by half a segment, pad to entire segments, and transform them.
        let mut x = x.clone();
        let half = self.length / 2;
        let zeros = PadMode::Constant(0.0);
        x = match self.boundary {
            None => pad_last(&x, (0, 0), zeros, PadOptions::new()),
            Some(Boundary::Zeros) => pad_last(&x, (half, half), zeros, PadOptions::new()),
            Some(Boundary::Constant) => pad_last(&x, (half, half), PadMode::Edge, PadOptions::new()),
            Some(Boundary::Even) => pad_last(&x, (half, half), PadMode::Reflect, PadOptions::new()),
            Some(Boundary::Odd) => {
                pad_last(&x, (half, half), PadMode::Reflect, PadOptions::new().reflect_type(ReflectType::Odd))
            }
        };
        if self.padded {
            let surplus = (last_size(&x) - self.length) % self.step;
            x = pad_last(&x, (0, (self.step - surplus) % self.step), PadMode::Constant(0.0), PadOptions::new());
        }
        let count = (last_size(&x) - self.length) / self.step + 1;
        let mut segments = x.take(places(count, self.length, self.step), -1);
        if let Some(trend) = &self.trend {
            segments = detrend(segments, -1, trend.clone());
        }
        let segments = segments * window;
        let options = FftOptions::new().n(self.nfft);
        if self.two_sided { options.fft(segments) } else { options.rfft(segments) }
    }
}

/// Pads the last axis before and after.
fn pad_last(x: &Array, widths: (usize, usize), mode: PadMode, options: PadOptions) -> Array {
    let mut all_widths = vec![(0, 0); x.ndim()];
    all_widths[x.ndim() - 1] = widths;
    options.pad(x, all_widths, mode)
}

/// The expected median of `n` exponentially distributed numbers with mean 1.
fn median_bias(n: usize) -> f64 {
    let terms = (1..=n.saturating_sub(1) / 2).map(|i| 1.0 / (2 * i + 1) as f64 - 1.0 / (2 * i) as f64);
    1.0 + terms.sum::<f64>()
}

/// The signal whose segments have the spectra `z`, `[.., frequencies, segments]`. The segments are added where they overlap, then
/// divided by the sum of the squares of the window.
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
    // Adds the overlapping segments, and divides by the sum of the squared windows.
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

/// Computes the short-time Fourier transform. Returns the frequencies, the times at the centers of the segments, and
/// the complex spectra, `[.., frequencies, segments]`. [`SpectralOptions`] has options.
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
/// # Errors
/// Returns an error for an empty signal, and for segments, windows and transforms whose lengths do not fit.
#[track_caller]
pub fn stft(x: impl ArrayLike) -> Result<(Array, Array, Array)> {
    SpectralOptions::new().stft(x)
}

/// Returns the inverse of [`stft`] for spectra `[.., frequencies, segments]`. Returns the times and the signal, `[..,
/// times]`. [`SpectralOptions`] has options; they must be equal to the options of [`stft`].
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
///
/// # Errors
/// Returns an error for fewer than two dimensions, and for lengths that do not fit.
#[track_caller]
pub fn istft(z: impl ArrayLike) -> Result<(Array, Array)> {
    SpectralOptions::new().istft(z)
}

/// Computes the cross spectral density of two signals by Welch's method. Returns the frequencies and the complex
/// density, which is the mean over the segments of the product of the spectra. The shorter signal is padded with zeros.
/// [`SpectralOptions`] has options.
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
///
/// # Errors
/// Returns the errors of [`stft`], and an error for batches of different shapes.
#[track_caller]
pub fn csd(x: impl ArrayLike, y: impl ArrayLike) -> Result<(Array, Array)> {
    SpectralOptions::new().csd(x, y)
}

/// Computes the power spectral density of a signal by Welch's method. Returns the frequencies and the real density,
/// which is the mean over the segments of the squared spectrum. [`SpectralOptions`] has options.
///
/// # Errors
/// Returns the errors of [`stft`].
#[track_caller]
pub fn welch(x: impl ArrayLike) -> Result<(Array, Array)> {
    SpectralOptions::new().welch(x)
}
