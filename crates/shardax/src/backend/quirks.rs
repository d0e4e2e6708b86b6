//! The quirks of plugins, by name: defects that programs are written to avoid.
//!
//! `SHARDAX_QUIRKS=none`, or `-name,-name`, writes programs as if the plugin did not have these defects. If a test
//! still passes without the workaround, you can remove the row and the code that queries it.

use std::sync::LazyLock;

use crate::core::lower::Platform;
use crate::settings::QUIRKS;
use crate::warning::warn;

/// A defect of plugins.
struct Quirk {
    name: &'static str,
    /// The platforms whose programs avoid the defect.
    platforms: &'static [Platform],
    /// The plugin and the version in which the defect was seen.
    plugin: &'static str,
    /// The wrong behaviour.
    problem: &'static str,
    /// The file that works around it.
    file: &'static str,
    /// The test that fails when the defect is gone.
    test: &'static str,
}

const XLA_CPU: &str = "xla-cpu-pjrt 0.0.1";
const CUDA: &str = "jax-cuda13-plugin 0.11.2";

const CPU: &[Platform] = &[Platform::Cpu];
const GPU: &[Platform] = &[Platform::Gpu];
const GPU_AND_TPU: &[Platform] = &[Platform::Gpu, Platform::Tpu, Platform::Other];
const CPU_AND_GPU: &[Platform] = &[Platform::Cpu, Platform::Gpu];
/// Portable forms avoid defects of XLA's partitioner and passes, which are the same everywhere.
const ALL: &[Platform] = &[Platform::Cpu, Platform::Gpu, Platform::Tpu, Platform::Other];

/// All quirks, by name.
const TABLE: &[Quirk] = &[
    // Its workaround is called by portable forms, because only they know which of their operands may be addends.
    Quirk {
        name: "addends-in-partitions",
        platforms: ALL,
        plugin: XLA_CPU,
        problem: "the partitioner loses addends in most operations: it treats a sum as the addend of each device",
        file: "ops/primitive/reshard.rs",
        test: "unreduced (of shardax-pjrt)",
    },
    Quirk {
        name: "all-reduce-loses-nan",
        platforms: CPU,
        plugin: XLA_CPU,
        problem: "maxima and minima over devices drop a NaN",
        file: "backend/cpu/ordered.rs",
        test: "extremes_keep_nan",
    },
    Quirk {
        name: "bits-of-packed-elements",
        platforms: ALL,
        plugin: XLA_CPU,
        problem: "bits cannot be counted in elements of less than a byte",
        file: "backend/elementwise.rs",
        test: "booleans_are_clamped_and_bits_of_few_counted",
    },
    Quirk {
        name: "complex-sine-overflow",
        platforms: ALL,
        plugin: XLA_CPU,
        problem: "sines and cosines of complex numbers are NaN in a part that is 0 if the other overflows",
        file: "backend/elementwise.rs",
        test: "edges (reference values)",
    },
    Quirk {
        name: "complex-size-of-infinity",
        platforms: ALL,
        plugin: XLA_CPU,
        problem: "the absolute value of a complex number with an infinite part is NaN if the other part is NaN",
        file: "backend/elementwise.rs",
        test: "edges (reference values)",
    },
    Quirk {
        name: "convolution-with-negative-padding",
        platforms: CPU,
        plugin: XLA_CPU,
        problem: "a convolution with negative padding and a stride is wrong",
        file: "backend/cpu/conv.rs",
        test: "convolutions_with_negative_padding",
    },
    Quirk {
        name: "digits-near-roots",
        platforms: ALL,
        plugin: XLA_CPU,
        problem: "`expm1` close to 0, and `lgamma` and `digamma` close to their roots, lose digits",
        file: "backend/elementwise.rs",
        test: "expm1_keeps_its_digits",
    },
    Quirk {
        name: "digits-of-cube-roots",
        platforms: CPU,
        plugin: XLA_CPU,
        problem: "`cbrt` is a power of 1 / 3, which loses digits",
        file: "backend/elementwise.rs",
        test: "cube_roots_have_their_digits",
    },
    Quirk {
        name: "effects-lose-sharding",
        platforms: ALL,
        plugin: XLA_CPU,
        problem: "the partitioner loses the sharding of a call with side effects, and the compiler rejects the program",
        file: "backend/host_calls.rs",
        test: "effects_happen_once_in_programs_over_devices",
    },
    Quirk {
        name: "exponential-of-constant-nan",
        platforms: CPU,
        plugin: XLA_CPU,
        problem: "functions by an integer exponent read uninitialized memory for a constant NaN",
        file: "backend/cpu/unary.rs",
        test: "exp_of_rows_of_nan_is_nan",
    },
    Quirk {
        name: "fast-extremes-drop-nan",
        platforms: CPU,
        plugin: XLA_CPU,
        problem: "`maximum` and `minimum` may drop a NaN",
        file: "backend/options.rs",
        test: "binary (reference values)",
    },
    Quirk {
        name: "finite-eigenvalues-of-nan",
        platforms: ALL,
        plugin: XLA_CPU,
        problem: "eigenvalues and eigenvectors of matrices with infinities and NaN are finite",
        file: "ops/primitive/eigh.rs",
        test: "eigenvalues_of_non_finite_matrices_are_nan",
    },
    Quirk {
        name: "interior-padding-with-cut-edges",
        platforms: ALL,
        plugin: XLA_CPU,
        problem: "the partitioner aborts the process for interior padding with a negative edge",
        file: "core/lower/pad.rs",
        test: "edges_cut_between_spread_elements_are_the_same",
    },
    Quirk {
        name: "largest-float4-is-infinite",
        platforms: ALL,
        plugin: XLA_CPU,
        problem: "the largest number of float4_e2m1fn, 6, is converted to the largest integer, as if it were infinite",
        file: "backend/elementwise.rs",
        test: "narrow::narrow_floats_are_integers",
    },
    Quirk {
        name: "layout-constraint-gathers-shards",
        platforms: CPU,
        plugin: XLA_CPU,
        problem: "the partitioner gathers all shards of a value with a layout constraint, to no effect",
        file: "ops/primitive/layout_constraint.rs",
        test: "values_inside_of_programs_are_constrained",
    },
    Quirk {
        name: "logarithms-of-powers",
        platforms: ALL,
        plugin: XLA_CPU,
        problem: "the logarithm of a power is a number even if the power is NaN",
        file: "backend/elementwise.rs",
        test: "logarithms_of_powers_keep_nan",
    },
    Quirk {
        name: "long-chains-of-additions",
        platforms: CPU,
        plugin: XLA_CPU,
        problem: "sums and products of vectors are one chain of additions, whose errors grow with its length",
        file: "backend/cpu/sums.rs",
        test: "sum_all_elements_of_many_shapes",
    },
    Quirk {
        name: "maximum-drops-nan",
        platforms: CPU,
        plugin: XLA_CPU,
        problem: "maxima and minima keep a NaN only with an option that prevents vectorization of reductions",
        file: "ops/primitive/reduce.rs",
        test: "maxima_keep_nan",
    },
    Quirk {
        name: "negative-zero-of-narrow-floats",
        platforms: ALL,
        plugin: XLA_CPU,
        problem: "small negative numbers are rounded to -0, whose bits are NaN in formats without -0",
        file: "backend/elementwise.rs",
        test: "narrow::host_and_device_convert_alike",
    },
    Quirk {
        name: "packed-elements",
        platforms: CPU_AND_GPU,
        plugin: "xla-cpu-pjrt 0.0.1, jax-cuda13-plugin 0.11.2",
        problem: "kernels of elements of fewer than 8 bits abort the process, give other numbers, or do not compile",
        file: "backend/packed.rs",
        test: "narrow::packed_elements",
    },
    Quirk {
        name: "padding-in-windows",
        platforms: ALL,
        plugin: XLA_CPU,
        problem: "windows contain the padding of dimensions that are split unevenly",
        file: "core/lower/mod.rs",
        test: "numbers/sharded",
    },
    Quirk {
        name: "products-of-bytes",
        platforms: GPU,
        plugin: CUDA,
        problem: "Triton's kernels give twice the products of operands of 8 bits, on an H100",
        file: "backend/gpu/dot.rs",
        test: "dot/dot_general_i8_to_i32 (reference value, on a GPU)",
    },
    Quirk {
        name: "products-that-change-axes",
        platforms: ALL,
        plugin: XLA_CPU,
        problem: "the partitioner gives wrong rows of a batched product whose result is split over another axis",
        file: "ops/primitive/dot.rs",
        test: "products_whose_batches_change_axes_are_the_same",
    },
    Quirk {
        name: "quantizations-left-out",
        platforms: GPU_AND_TPU,
        plugin: CUDA,
        problem: "a conversion to a narrow type and back is left out, and a quantization with it",
        file: "backend/options.rs",
        test: "accelerators/narrow (on a GPU)",
    },
    Quirk {
        name: "scatters-into-slices",
        platforms: ALL,
        plugin: XLA_CPU,
        problem: "a scatter of one row into a slice reads another part for a position out of bounds",
        file: "ops/primitive/scatter.rs",
        test: "one_position_of_an_array_that_is_split_while_it_runs_is_the_same",
    },
    Quirk {
        name: "scatters-without-positions",
        platforms: ALL,
        plugin: XLA_CPU,
        problem: "only the last of several updates counts if a scatter's index vectors are empty",
        file: "ops/primitive/scatter.rs",
        test: "updates_of_a_scatter_without_positions_add_up",
    },
    Quirk {
        name: "short-programs-change-threads",
        platforms: CPU,
        plugin: XLA_CPU,
        problem: "a program with 1,000 counted operations or more runs on another thread, which takes 10 µs or more",
        file: "backend/cpu/calling_thread.rs",
        test: "short_programs_run_on_the_calling_thread",
    },
    Quirk {
        name: "slices-of-slices",
        platforms: ALL,
        plugin: XLA_CPU,
        problem: "positions of slices of slices are added without clamping",
        file: "ops/primitive/dynamic_slice.rs",
        test: "positions_out_of_bounds_of_a_slice_stay_in_it",
    },
    Quirk {
        name: "small-products-of-float8",
        platforms: GPU,
        plugin: CUDA,
        problem: "products of small matrices of float8 are added up in float16, and are infinite above 65504, on an H200",
        file: "backend/gpu/dot.rs",
        test: "narrow::products",
    },
    Quirk {
        name: "split-convolutions",
        platforms: ALL,
        plugin: XLA_CPU,
        problem: "the partitioner's convolutions with split spatial dimensions, or groups, are wrong",
        file: "ops/primitive/conv.rs",
        test: "a_convolution_of_split_images_is_the_same",
    },
    Quirk {
        name: "split-maxima-drop-nan",
        platforms: CPU,
        plugin: XLA_CPU,
        problem: "the partitioner's all-reduce of maxima and minima drops a NaN",
        file: "ops/primitive/reduce.rs",
        test: "maxima_keep_nan",
    },
    // Its workaround is in the portable form, because it applies to positions that the form has already clipped.
    Quirk {
        name: "split-scatter-positions",
        platforms: ALL,
        plugin: XLA_CPU,
        problem: "the partitioner's scatters are wrong if positions are split next to a batch, or unevenly",
        file: "ops/primitive/scatter.rs",
        test: "updates_from_unequal_parts_are_the_same",
    },
    Quirk {
        name: "stale-packed-operands",
        platforms: CPU,
        plugin: XLA_CPU,
        problem: "XNNPACK's matrix products may use the old contents of an array that was changed in place",
        file: "backend/options.rs",
        test: "programs_see_operands_that_changed_in_place",
    },
    Quirk {
        name: "sums-of-ynnpack",
        platforms: CPU,
        plugin: XLA_CPU,
        problem: "YNNPACK's sums race where several devices first run them, are one chain of additions, end the process for 15 dimensions or more, and lose terms of products with a constant matrix",
        file: "backend/options.rs",
        test: "no_sum_is_left_to_ynnpack",
    },
    Quirk {
        name: "triangular-solve-spreads-nan",
        platforms: CPU,
        plugin: XLA_CPU,
        problem: "a NaN in the last row, or a zero on the diagonal, makes the whole solution NaN",
        file: "backend/cpu/triangular_solve.rs",
        test: "triangular_solves_keep_nan_in_its_place",
    },
];

/// The names in `SHARDAX_QUIRKS`. Warns of the defects that programs can have because of it, and of names that are not
/// in the table.
static DISABLED: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
    let names = QUIRKS.get().unwrap_or_default();
    let all: Vec<&str> = TABLE.iter().map(|quirk| quirk.name).collect();
    for unknown in names.iter().filter(|name| *name != "none" && !all.contains(&name.as_str())) {
        warn(&format!("SHARDAX_QUIRKS: there is no quirk {unknown:?}"), &format!("use some of {}", all.join(", ")));
    }
    let disabled: Vec<&Quirk> =
        TABLE.iter().filter(|quirk: &&Quirk| names.iter().any(|name| name == "none" || name == quirk.name)).collect();
    for Quirk { name, plugin, problem, file, test, .. } in &disabled {
        warn(
            &format!("programs are not written around {name}: {problem} ({plugin})"),
            &format!("if {test} passes, the plugin no longer needs the workaround in {file}"),
        );
    }
    disabled.into_iter().map(|quirk| quirk.name).collect()
});

/// Returns `true` if programs of a platform avoid this quirk.
pub(super) fn has(platform: Platform, name: &str) -> bool {
    let quirk = TABLE.iter().find(|quirk| quirk.name == name);
    quirk.is_some_and(|quirk| quirk.platforms.contains(&platform)) && !DISABLED.contains(&name)
}

/// Returns what goes wrong without the workaround of a quirk.
pub(super) fn problem(name: &str) -> &'static str {
    TABLE.iter().find(|quirk| quirk.name == name).map_or("", |quirk| quirk.problem)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::TABLE;

    /// Each row is queried by its file, and no file queries another name.
    #[test]
    fn quirks_match_sources() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        for quirk in TABLE {
            let text = std::fs::read_to_string(source.join(quirk.file)).expect("the file of the row");
            assert!(text.contains(&format!("\"{}\")", quirk.name)), "{} in {}", quirk.name, quirk.file);
            assert!(!quirk.plugin.is_empty() && !quirk.problem.is_empty() && !quirk.test.is_empty(), "{}", quirk.name);
        }
        assert!(TABLE.is_sorted_by_key(|quirk| quirk.name));
        let mut folders = vec![source];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).expect("a folder") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let text = std::fs::read_to_string(&path).expect("a source file");
                for name in text.split("has_quirk(\"").skip(1).filter_map(|rest| rest.split('"').next()) {
                    let is_known = name.contains('{') || TABLE.iter().any(|quirk| quirk.name == name);
                    assert!(is_known, "{} asks for the quirk {name}, which is not in the table", path.display());
                }
            }
        }
    }
}
