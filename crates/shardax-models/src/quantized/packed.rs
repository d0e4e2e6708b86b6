//! Models that keep their quantized weights quantized in memory.

use std::marker::PhantomData;
use std::path::Path;

use shardax::error::Result;
use shardax::sharding::Sharding;
use shardax::tree::TreeDef;
use shardax_nn::prelude::*;

use super::{Groups, Integers};
use crate::error::value_error;
use crate::huggingface::{LoadOptions, Place, Pretrained, Raw, read_each};

/// A model that keeps its quantized weights quantized in memory. Programs dequantize each weight where they use it.
///
/// You can load it from a GGUF file, or from a folder whose weights are quantized with GPTQ or AWQ. Weights that the
/// file stores in 16 or 32 bits are ordinary arrays.
///
/// [`unpack`](Packed::unpack) returns the model with dequantized weights. You should call it inside of a program, so
/// that the compiler can dequantize each weight just before the product that uses it. Otherwise all dequantized weights
/// are in memory at the same time.
///
/// ```no_run
/// use shardax_models::{Decoder, GenerateOptions, Packed};
/// use shardax_nn::prelude::*;
///
/// let model = Packed::<Decoder>::from_pretrained("Qwen3-0.6B-Q4_K_M.gguf")?;
/// let logits = jit(|model: Packed<Decoder>, tokens: Array| -> Result<Array> { Ok(model.unpack()?.forward(tokens)) });
/// let logits = logits.call((&model, array([[464, 3290]])))?;
/// let written = model.generate(&[vec![464, 3290]], &GenerateOptions::new(20))?;
/// # let _ = (logits, written);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Module, Clone, Debug)]
pub struct Packed<M: Module + 'static> {
    weights: Vec<Weight>,
    #[tree(static)]
    structure: TreeDef,
    #[tree(static)]
    model: Of<M>,
}

/// The type of a model.
struct Of<M>(PhantomData<fn() -> M>);

/// An array of the model.
#[derive(Module, Clone, Debug)]
enum Weight {
    Plain(Array),
    Blocks(Blocks),
}

/// A quantized matrix.
#[derive(Module, Clone, Debug)]
struct Blocks {
    /// The integers, `[rows, groups, group]`, int4, uint4 or int8.
    values: Frozen,
    /// The scales, `[rows, groups]`, in float16 if that is exact, otherwise in float32.
    scales: Frozen,
    /// The minima, `[rows, groups]`.
    minima: Option<Frozen>,
    /// The stored position of each column, `[columns]`.
    order: Option<Frozen>,
    #[tree(static)]
    form: Form,
}

/// The shape and the dtype of the dequantized array.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Form {
    /// The number of matrices whose rows are concatenated: the experts of a layer, otherwise 1.
    matrices: usize,
    is_transposed: bool,
    shape: Vec<usize>,
    dtype: DType,
}

impl<M: Pretrained + 'static> Packed<M> {
    /// Loads the model from a GGUF file or from a folder of `transformers`.
    ///
    /// Returns the same errors as [`Pretrained::from_pretrained`], for example if a file is damaged.
    #[track_caller]
    pub fn from_pretrained(path: impl AsRef<Path>) -> Result<Self> {
        Self::from_pretrained_with(path, &LoadOptions::new())
    }

    /// Loads the model with options for dtypes and shardings. If the rules split the outputs or the inputs of a kernel,
    /// the quantized matrix is split by rows or by groups.
    ///
    /// # Errors
    /// Returns an error if a file is missing or damaged, or if the configuration has a field that you cannot load
    /// here; the message names it.
    #[track_caller]
    pub fn from_pretrained_with(path: impl AsRef<Path>, options: &LoadOptions) -> Result<Self> {
        let location = std::panic::Location::caller();
        load(path.as_ref(), options).map_err(|error| error.at(location))
    }
}

impl<M: Module + 'static> Packed<M> {
    /// Returns the model with all weights dequantized to the compute dtype.
    ///
    /// You should call this inside of a program, because otherwise all dequantized weights are in memory.
    #[track_caller]
    pub fn unpack(&self) -> Result<M> {
        let arrays: Vec<Array> = self.weights.iter().map(Weight::widened).collect();
        tree::unflatten(&self.structure, &arrays)
    }

    /// Returns the number of weights that are stored quantized, and the number of all weights.
    pub fn packed_count(&self) -> (usize, usize) {
        let packed = self.weights.iter().filter(|weight| matches!(weight, Weight::Blocks(_))).count();
        (packed, self.weights.len())
    }
}

fn load<M: Pretrained + 'static>(path: &Path, options: &LoadOptions) -> Result<Packed<M>> {
    let (weights, structure) = read_each::<M, _>(path, options, read)?;
    Ok(Packed { weights, structure, model: Of(PhantomData) })
}

/// Reads an array. It stays quantized if the file stores it quantized.
fn read(place: &Place<'_>) -> Result<Weight> {
    let groups = if place.like.ndim() >= 2 { place.groups()? } else { None };
    let Some((groups, is_transposed)) = groups else { return place.array().map(Weight::Plain) };
    let shape = place.like.shape().to_vec();
    if groups.shape.iter().product::<usize>() != shape.iter().product::<usize>() {
        let message =
            format!("`{}` has the shape {shape:?}, but the array in the file has {:?}", place.path, groups.shape);
        return Err(value_error(message, "check that the configuration and the files belong to the same model"));
    }
    let form = Form { matrices: place.matrices(), is_transposed, shape, dtype: place.like.dtype() };
    let sharding = place.sharding_of_groups(is_transposed, [groups.shape[0], groups.groups_per_row()])?;
    Blocks::new(groups, form, sharding).map(Weight::Blocks)
}

impl Weight {
    fn widened(&self) -> Array {
        match self {
            Weight::Plain(array) => array.clone(),
            Weight::Blocks(blocks) => blocks.widened(),
        }
    }
}

impl Blocks {
    /// Copies groups to the device.
    fn new(groups: Groups, form: Form, sharding: Option<[Sharding; 2]>) -> Result<Blocks> {
        let (rows, per_row) = (groups.shape[0], groups.groups_per_row());
        let dtype = match groups.integers {
            Integers::Signed4 => DType::I4,
            Integers::Unsigned4 => DType::U4,
            Integers::Signed8 => DType::I8,
        };
        let [of_values, of_scales] = match sharding {
            Some([values, scales]) => [Some(values), Some(scales)],
            None => [None, None],
        };
        // The conversion reuses the memory, because a copy of the largest matrix would determine the peak of memory.
        let bytes = groups.values.into_iter().map(i8::cast_unsigned).collect();
        let values = Raw { dtype, shape: vec![rows, per_row, groups.group], bytes }.to_array(of_values)?;
        let numbers =
            |numbers: &[f32]| narrowed(&[rows, per_row], numbers).to_array(of_scales.clone()).map(Frozen::new);
        let order = groups.order.as_ref().map(|order| Array::from_slice(order, &[order.len()])).transpose()?;
        Ok(Blocks {
            values: Frozen::new(values),
            scales: numbers(&groups.scales)?,
            minima: if groups.minima.is_empty() { None } else { Some(numbers(&groups.minima)?) },
            order: order.map(Frozen::new),
            form,
        })
    }

    fn widened(&self) -> Array {
        let mut numbers = self.values.astype(DType::F32) * self.scales.astype(DType::F32).expand_dims(-1);
        if let Some(minima) = &self.minima {
            numbers = numbers - minima.astype(DType::F32).expand_dims(-1);
        }
        let (rows, columns) = (self.values.shape()[0], self.values.shape()[1] * self.values.shape()[2]);
        let mut matrix = numbers.reshape([rows, columns]).astype(self.form.dtype);
        if let Some(order) = &self.order {
            matrix = take(&matrix, &**order, 1);
        }
        let shape = self.form.shape.as_slice();
        if self.form.matrices > 1 {
            // The kernels of experts have the inputs first.
            let count = self.form.matrices;
            return matrix.reshape([count, rows / count, columns]).swapaxes(1, 2).reshape(shape);
        }
        if self.form.is_transposed {
            matrix = matrix.t();
        }
        matrix.reshape(shape)
    }
}

/// Converts the numbers to float16 if all of them are exact, otherwise to float32.
fn narrowed(shape: &[usize], numbers: &[f32]) -> Raw {
    let halves: Vec<half::f16> = numbers.iter().map(|number| half::f16::from_f32(*number)).collect();
    if halves.iter().zip(numbers).any(|(half, number)| half.to_f32() != *number) {
        return Raw::of_f32(shape.to_vec(), numbers);
    }
    let bytes = halves.iter().flat_map(|half| half.to_ne_bytes()).collect();
    Raw { dtype: DType::F16, shape: shape.to_vec(), bytes }
}

impl<M> Clone for Of<M> {
    fn clone(&self) -> Self {
        Of(PhantomData)
    }
}

impl<M> PartialEq for Of<M> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl<M> Eq for Of<M> {}

impl<M> std::fmt::Debug for Of<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(std::any::type_name::<M>())
    }
}

impl<M> std::hash::Hash for Of<M> {
    fn hash<H: std::hash::Hasher>(&self, _: &mut H) {}
}
