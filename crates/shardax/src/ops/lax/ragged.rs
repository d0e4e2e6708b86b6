//! Matrix products of groups of rows, where each group has a different matrix.

use super::dot::DotOptions;
use crate::core::array::Array;
use crate::core::program::trace::or_failed;
use crate::dtype::DType;
use crate::error::{Result, err};
use crate::ops::lax;
use crate::ops::operators::ArrayLike;
use crate::ops::select::where_;

impl DotOptions {
    /// See [`ragged_dot`](ragged_dot()).
    #[track_caller]
    pub fn ragged_dot(&self, lhs: impl ArrayLike, rhs: impl ArrayLike, group_sizes: impl ArrayLike) -> Array {
        let (lhs, rhs, group_sizes) = (&lhs.into_array(), &rhs.into_array(), &group_sizes.into_array());
        or_failed(lhs, || {
            check(lhs, rhs, group_sizes)?;
            let groups = rhs.shape()[0];
            let rows = lhs.shape()[0];
            // Repeats the rows for each group, with zeros for the rows of other groups, so that one product can sum over the groups.
            let ends = group_sizes.astype(DType::I32).cumsum(0);
            let row = lax::iota(DType::I32, &[groups, rows], 1);
            let starts = (&ends - group_sizes.astype(DType::I32)).expand_dims(1);
            let is_in_group = row.greater_equal(starts) & row.less(ends.expand_dims(1));
            let masked = where_(is_in_group.expand_dims(2), lhs.expand_dims(0), 0);
            Ok(self.dot_general(&masked, rhs, (&[0, 2], &[0, 1]), (&[], &[])))
        })
    }

    /// See [`ragged_dot_general`](ragged_dot_general()).
    #[track_caller]
    pub fn ragged_dot_general(
        &self,
        lhs: impl ArrayLike,
        rhs: impl ArrayLike,
        group_sizes: impl ArrayLike,
        dimension_numbers: &RaggedDotDimensionNumbers,
    ) -> Array {
        let (lhs, rhs, group_sizes) = (&lhs.into_array(), &rhs.into_array(), &group_sizes.into_array());
        or_failed(lhs, || {
            let ragged = Ragged::new(lhs, rhs, group_sizes, dimension_numbers)?;
            let RaggedDotDimensionNumbers { lhs_contracting, rhs_contracting, lhs_batch, rhs_batch, .. } =
                dimension_numbers;
            /// Returns the dimensions after one dimension is added in front.
            fn shifted(first: Option<usize>, dims: &[usize]) -> Vec<usize> {
                first.into_iter().chain(dims.iter().map(|d| d + 1)).collect()
            }
            Ok(match ragged.role {
                // The sizes of groups of batches change no product.
                Role::Batch => self.dot_general(lhs, rhs, (lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch)),
                Role::Free { group } => {
                    let contracted = [&[group], rhs_contracting.as_slice()].concat();
                    self.dot_general(
                        &ragged.expand(lhs, dimension_numbers.lhs_ragged_dimension, &ragged.prefix),
                        rhs,
                        (&shifted(Some(0), lhs_contracting), &contracted),
                        (&shifted(None, lhs_batch), rhs_batch),
                    )
                }
                Role::Contracting { place } => {
                    let rhs_prefix = [rhs_batch.as_slice(), &rhs_contracting[..place]].concat();
                    self.dot_general(
                        &ragged.expand(lhs, dimension_numbers.lhs_ragged_dimension, &ragged.prefix),
                        &ragged.expand(rhs, rhs_contracting[place], &rhs_prefix),
                        (&shifted(None, lhs_contracting), &shifted(None, rhs_contracting)),
                        (&shifted(Some(0), lhs_batch), &shifted(Some(0), rhs_batch)),
                    )
                }
            })
        })
    }
}

/// The dimensions of [`ragged_dot_general`](ragged_dot_general()).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RaggedDotDimensionNumbers {
    /// The contracting dimensions of `lhs`.
    pub lhs_contracting: Vec<usize>,
    /// The contracting dimensions of `rhs`, in the order of `lhs_contracting`.
    pub rhs_contracting: Vec<usize>,
    /// The batch dimensions of `lhs`.
    pub lhs_batch: Vec<usize>,
    /// The batch dimensions of `rhs`, in the order of `lhs_batch`.
    pub rhs_batch: Vec<usize>,
    /// The dimension of `lhs` whose elements are in groups.
    pub lhs_ragged_dimension: usize,
    /// The dimension of `rhs` with an entry for each group, if the ragged dimension is neither contracting nor a batch
    /// dimension.
    pub rhs_group_dimension: Option<usize>,
}

/// The role of the ragged dimension in the product.
enum Role {
    Batch,
    Free {
        group: usize,
    },
    /// The position in the contracting dimensions.
    Contracting {
        place: usize,
    },
}

/// Groups whose sizes and dimensions fit the operands.
struct Ragged {
    role: Role,
    /// The dimensions of the left operand for which the sizes of the groups differ.
    prefix: Vec<usize>,
    /// The sizes of the groups, int32, `[..., g]` with the leading dimensions of `prefix`.
    sizes: Array,
}

impl Ragged {
    fn new(lhs: &Array, rhs: &Array, sizes: &Array, dims: &RaggedDotDimensionNumbers) -> Result<Self> {
        [lhs, rhs, sizes].into_iter().try_for_each(Array::check)?;
        check_integers("ragged_dot_general", sizes)?;
        let ragged = dims.lhs_ragged_dimension;
        if let Some(dim) =
            dims.lhs_contracting.iter().chain(&dims.lhs_batch).chain([&ragged]).find(|d| **d >= lhs.ndim())
        {
            return Err(err!(Value, "ragged_dot_general has no dimension {dim} in lhs, {}", lhs.type_name())
                .help("the dimensions of lhs are its contracting, batch and ragged dimensions"));
        }
        if let Some(dim) = dims
            .rhs_contracting
            .iter()
            .chain(&dims.rhs_batch)
            .chain(&dims.rhs_group_dimension)
            .find(|d| **d >= rhs.ndim())
        {
            return Err(err!(Value, "ragged_dot_general has no dimension {dim} in rhs, {}", rhs.type_name())
                .help("the dimensions of rhs are its contracting, batch and group dimensions"));
        }
        if (dims.lhs_contracting.len(), dims.lhs_batch.len()) != (dims.rhs_contracting.len(), dims.rhs_batch.len()) {
            return Err(err!(Value, "ragged_dot_general needs as many dimensions of lhs as of rhs, got {dims:?}")
                .help("contracting and batch dimensions are pairs"));
        }
        let groups = *sizes.shape().last().ok_or_else(|| {
            err!(Value, "ragged_dot_general needs group_sizes of at least one dimension, got {}", sizes.type_name())
                .help("the last dimension of group_sizes has one entry for each group")
        })?;
        let (role, prefix) = Self::role(lhs, dims)?;
        match role {
            Role::Free { group } if rhs.shape()[group] != groups => {
                return Err(err!(
                    Value,
                    "dimension {group} of rhs, {}, needs one entry for each of the {groups} groups of {}",
                    rhs.type_name(),
                    sizes.type_name()
                )
                .help("pass as many sizes as matrices"));
            }
            _ => {}
        }
        let leading: Vec<usize> = prefix.iter().map(|&d| lhs.shape()[d]).collect();
        let shape = [leading.as_slice(), &[groups]].concat();
        if sizes.ndim() != 1 && sizes.shape() != shape {
            return Err(err!(Value, "ragged_dot_general needs group_sizes of {shape:?}, got {}", sizes.type_name())
                .help(
                    "the leading dimensions are the batch dimensions and the dimensions of lhs before the ragged one; \
                       a vector applies to all of them",
                ));
        }
        let sizes = sizes.astype(DType::I32);
        let last: Vec<usize> = (shape.len() - sizes.ndim()..shape.len()).collect();
        Ok(Ragged { role, prefix, sizes: lax::broadcast_in_dim(&sizes, &shape, &last) })
    }

    /// Returns the role of the ragged dimension, and the dimensions before it.
    fn role(lhs: &Array, dims: &RaggedDotDimensionNumbers) -> Result<(Role, Vec<usize>)> {
        let RaggedDotDimensionNumbers { lhs_contracting, lhs_batch, lhs_ragged_dimension: ragged, .. } = dims;
        if let Some(place) = lhs_batch.iter().position(|d| d == ragged) {
            dims.no_group("a batch")?;
            return Ok((Role::Batch, lhs_batch[..place].to_vec()));
        }
        if let Some(place) = lhs_contracting.iter().position(|d| d == ragged) {
            dims.no_group("a contracting")?;
            return Ok((Role::Contracting { place }, [lhs_batch.as_slice(), &lhs_contracting[..place]].concat()));
        }
        let Some(group) = dims.rhs_group_dimension else {
            return Err(err!(
                Value,
                "ragged_dot_general needs a group dimension of rhs, because the ragged dimension {ragged} of lhs, {}, is neither \
                 a contracting nor a batch dimension",
                lhs.type_name()
            )
            .help("set `rhs_group_dimension`"));
        };
        if dims.rhs_contracting.contains(&group) || dims.rhs_batch.contains(&group) {
            return Err(err!(Value, "the group dimension {group} of rhs is also a contracting or batch dimension")
                .help("each dimension has one role"));
        }
        let free = (0..*ragged).filter(|d| !lhs_contracting.contains(d) && !lhs_batch.contains(d));
        Ok((Role::Free { group }, lhs_batch.iter().copied().chain(free).collect()))
    }

    /// Repeats `x` for each group in a new first dimension, with zeros for the elements of other groups along `dim`. `prefix` has the
    /// dimensions of `x` for which the sizes differ.
    fn expand(&self, x: &Array, dim: usize, prefix: &[usize]) -> Array {
        let groups = self.sizes.shape()[prefix.len()];
        let shape = [&[groups], x.shape()].concat();
        // The dimensions of the sizes in ascending order of their places in the result, where the groups come first.
        let mut order: Vec<usize> = (0..prefix.len()).collect();
        order.sort_by_key(|&i| prefix[i]);
        let places: Vec<usize> = [0].into_iter().chain(order.iter().map(|&i| prefix[i] + 1)).collect();
        order.insert(0, prefix.len());
        let ends = self.sizes.cumsum(-1);
        let starts = &ends - &self.sizes;
        let [starts, ends] =
            [starts, ends].map(|bound| lax::broadcast_in_dim(lax::transpose(&bound, &order), &shape, &places));
        let index = lax::iota(DType::I32, &shape, dim + 1);
        let x = lax::broadcast_in_dim(x, &shape, &(1..shape.len()).collect::<Vec<_>>());
        where_(index.greater_equal(starts) & index.less(ends), x, 0)
    }
}

impl RaggedDotDimensionNumbers {
    fn no_group(&self, role: &str) -> Result<()> {
        let Some(group) = self.rhs_group_dimension else { return Ok(()) };
        Err(err!(Value, "ragged_dot_general takes no group dimension of rhs for {role} dimension, got {group}")
            .help("the right operand has groups only if the ragged dimension stays in the result"))
    }
}

/// Returns an error unless the sizes of groups are integers.
fn check_integers(name: &str, group_sizes: &Array) -> Result<()> {
    if group_sizes.dtype().is_integer() {
        Ok(())
    } else {
        Err(err!(Type, "{name} requires integer group_sizes, got {}", group_sizes.type_name())
            .help("convert them with `astype(DType::I32)`"))
    }
}

fn check(lhs: &Array, rhs: &Array, group_sizes: &Array) -> Result<()> {
    [lhs, rhs, group_sizes].into_iter().try_for_each(Array::check)?;
    let fits = match (lhs.shape(), rhs.shape(), group_sizes.shape()) {
        ([_, k], [groups, k2, _], [sizes]) => k == k2 && groups == sizes,
        _ => false,
    };
    if !fits {
        return Err(err!(
            Type,
            "ragged_dot requires rows [m, k], matrices [g, k, n] and sizes [g], got {}, {} and {}",
            lhs.type_name(),
            rhs.type_name(),
            group_sizes.type_name()
        )
        .help("pass one matrix for each group of rows, and the number of rows of each group"));
    }
    check_integers("ragged_dot", group_sizes)
}

/// Multiplies each group of consecutive rows of `lhs`, `[m, k]`, by one matrix of `rhs`, `[g, k, n]`: the first
/// `group_sizes[0]` rows by the first matrix, and so on. The result is zero for rows after the last group. As in JAX, the rows of other
/// groups are zeros that are multiplied with a matrix, so that an infinite or NaN element of a matrix makes them NaN too.
/// [`DotOptions`] has a precision and a dtype.
///
/// ```
/// # use shardax::prelude::*;
/// let (rows, matrices) = (array([[1.0f32], [2.0], [3.0]]), array([[[10.0f32]], [[100.0]]]));
/// let y = lax::ragged_dot(&rows, &matrices, &array([1, 2]));
/// assert_eq!(y.to_vec::<f32>()?, [10.0, 200.0, 300.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for shapes that do not fit, and sizes that are not integers.
#[track_caller]
pub fn ragged_dot(lhs: impl ArrayLike, rhs: impl ArrayLike, group_sizes: impl ArrayLike) -> Array {
    DotOptions::new().ragged_dot(lhs, rhs, group_sizes)
}

/// Multiplies arrays by groups: the ragged dimension of `lhs` consists of groups of consecutive elements, and `group_sizes`, `[g]`, has
/// their sizes.
///
/// | ragged dimension | operands | result |
/// |---|---|---|
/// | in the result | `[b, m, k]` and `[g, b, k, n]` | `[b, m, n]`: each group of `m` is multiplied by its own entry of `rhs` |
/// | contracting | `[b, m, k]` and `[b, k, n]` | `[g, b, m, n]`: one product for each group of `k` |
/// | a batch dimension | `[b, m, k]` and `[b, k, n]` | `[b, m, n]`: the product without groups |
///
/// If the sizes differ between batches, `group_sizes` is `[b, g]`: its leading dimensions are the batch dimensions, and the dimensions
/// of the ragged dimension's kind before it. Elements after the last group count as zero. [`DotOptions`] has a precision, a dtype and
/// a sharding.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::lax::RaggedDotDimensionNumbers;
/// // The gradient of `ragged_dot` with respect to its matrices is a product for each group of rows.
/// let dims = RaggedDotDimensionNumbers {
///     lhs_contracting: vec![0],
///     rhs_contracting: vec![0],
///     lhs_ragged_dimension: 0,
///     ..Default::default()
/// };
/// let (x, y) = (array([[1.0f32], [2.0], [3.0]]), array([[10.0f32], [100.0], [1000.0]]));
/// let z = lax::ragged_dot_general(&x, &y, &array([1, 2]), &dims);
/// assert_eq!((z.shape(), z.to_vec::<f32>()?), (&[2, 1, 1][..], vec![10.0, 3200.0]));
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for dimensions and shapes that do not fit, and sizes that are not integers.
#[track_caller]
pub fn ragged_dot_general(
    lhs: impl ArrayLike,
    rhs: impl ArrayLike,
    group_sizes: impl ArrayLike,
    dimension_numbers: &RaggedDotDimensionNumbers,
) -> Array {
    DotOptions::new().ragged_dot_general(lhs, rhs, group_sizes, dimension_numbers)
}
