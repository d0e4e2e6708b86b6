//! Partitioning without compiling: converts a program for many devices to the HLO that each of them runs.
//!
//! The CPU plugin (xla-cpu-pjrt 0.0.1) partitions only as part of a compilation. Therefore a call of an unregistered
//! function is added to the program: XLA runs its passes, and fails before code generation because the function does
//! not exist. The partitioned module is read from the dump that XLA writes to a temporary folder. Test:
//! `localize::tests::the_plugin_stops_after_partitioning`.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::client::Client;
use crate::error::{Code, Error, Result};
use crate::hlo::HloInstruction;
use crate::hlo::wire::Wire;
use crate::named_value::Value;
use crate::options::CompileOptions;
use crate::sharding::OpSharding;

/// The function that does not exist.
pub(crate) const STOP: &str = "shardax_stop";

/// The end of the name of the file that XLA writes after the last necessary pass.
const DUMPED: &str = "spmd-partitioner.after_call-inliner.before_pipeline-end.hlo.pb";

/// The passes of partitioning. All others are disabled to save time.
const PASSES: &str = "flatten-call-graph,shardy-xla,spmd-partitioning,call-inliner,spmd-prepare";

/// A program as each of its devices runs it, with collectives, before optimization.
#[derive(Clone, Debug)]
pub struct Partitioned {
    /// A serialized `HloModuleProto`.
    pub(crate) module: Vec<u8>,
    pub(crate) output_shardings: Option<Vec<OpSharding>>,
    pub(crate) parameter_shardings: Option<Vec<OpSharding>>,
    /// The device of each partition.
    pub(crate) device_ids: Vec<usize>,
}

impl Client {
    /// Partitions a StableHLO program over the devices of the options, which can include devices of other processes,
    /// without compiling it.
    ///
    /// # Errors
    /// Returns the errors of [`Client::compile`], and [`Code::Unimplemented`] if the plugin does not show the
    /// partitioned program.
    pub fn partition(&self, mlir: &str, options: &CompileOptions) -> Result<Partitioned> {
        let mut options = options.clone();
        if options.num_replicas != 1 || options.portable {
            return Err(Error::invalid_argument(
                "only programs with one replica and several partitions can be partitioned",
            ));
        }
        if !options.propagate_to_outputs.is_empty() {
            options.propagate_to_outputs.push(false); // for the added result
        }
        let device_ids = if options.device_ids.is_empty() {
            self.devices().iter().map(|device| device.id()).take(options.num_partitions).collect()
        } else {
            options.device_ids.clone()
        };
        let folder = Folder::make()?;
        options.overrides.extend([
            ("xla_dump_to".to_owned(), Value::String(folder.0.to_string_lossy().into_owned())),
            ("xla_dump_hlo_as_proto".to_owned(), Value::Bool(true)),
            ("xla_dump_hlo_pass_re".to_owned(), Value::String("call-inliner".to_owned())),
            ("xla_enable_hlo_passes_only".to_owned(), Value::String(PASSES.to_owned())),
        ]);
        match self.compile_only(&with_stop(mlir)?, &options) {
            Err(error) if error.message.contains(STOP) => {}
            Err(error) => return Err(error),
            Ok(()) => {
                return Err(Error::new(
                    Code::Unimplemented,
                    "the plugin compiled a program that calls a function that does not exist, so it cannot be \
                         stopped after partitioning",
                ));
            }
        }
        let module = folder.dumped()?;
        let (parameter_shardings, output_shardings) = shardings(&module)?;
        Ok(Partitioned { module, output_shardings, parameter_shardings, device_ids })
    }
}

impl Partitioned {
    /// Restores the result of [`Partitioned::module`], possibly of another process. The devices must be the original
    /// ones.
    ///
    /// # Errors
    /// Returns an error if the bytes are not a module.
    pub fn from_module(module: Vec<u8>, device_ids: Vec<usize>) -> Result<Partitioned> {
        let (parameter_shardings, output_shardings) = shardings(&module)?;
        Ok(Partitioned { module, output_shardings, parameter_shardings, device_ids })
    }

    /// The serialized `HloModuleProto`.
    pub fn module(&self) -> &[u8] {
        &self.module
    }

    /// The instructions that each device runs, before optimization; collectives refer to partitions by number.
    ///
    /// # Errors
    /// Returns an error if the plugin wrote a module that cannot be decoded.
    pub fn instructions(&self) -> Result<Vec<HloInstruction>> {
        let mut instructions = crate::hlo::instructions(&self.module)?;
        instructions.retain(|i| i.custom_call_target.as_deref() != Some(STOP));
        Ok(instructions)
    }

    /// The sharding of each result, specified or chosen by the compiler; `None` if the program was not partitioned.
    pub fn output_shardings(&self) -> Option<&[OpSharding]> {
        self.output_shardings.as_deref()
    }

    /// The sharding of each parameter, specified or chosen by the compiler; `None` if the program was not partitioned.
    pub fn parameter_shardings(&self) -> Option<&[OpSharding]> {
        self.parameter_shardings.as_deref()
    }
}

/// The shardings of parameters and outputs, without the added result.
fn shardings(module: &[u8]) -> Result<(Option<Vec<OpSharding>>, Option<Vec<OpSharding>>)> {
    let shardings = crate::hlo::Shardings::decode(module, 0)?;
    let outputs = shardings.outputs.map(|mut outputs| {
        outputs.pop();
        outputs
    });
    Ok((shardings.parameters, outputs))
}

/// Adds a result that comes from the function that does not exist.
fn with_stop(mlir: &str) -> Result<String> {
    let main = mlir.find("@main(").ok_or_else(|| incomplete("function @main"))?;
    let parameters = main + "@main".len();
    let parameters_end = closing(mlir, parameters).ok_or_else(|| incomplete("end of its parameters"))?;
    let body = body_start(mlir, parameters_end).ok_or_else(|| incomplete("body"))?;
    let results = mlir[parameters_end..body].trim();
    let results = results.strip_prefix("->").map_or("", str::trim);
    // `-> (a, b)`, or one type without parentheses.
    let inner = match results.strip_prefix('(').and_then(|r| r.strip_suffix(')')) {
        Some(inner) => inner,
        None => results,
    };
    let end = closing(mlir, body).ok_or_else(|| incomplete("end"))? - 1;
    let last_line = mlir[..end].trim_end().rfind('\n').map_or(body + 1, |newline| newline + 1);
    let line = mlir[last_line..end].trim();
    let (names, types) = returned(line).ok_or_else(|| incomplete("return on its last line"))?;
    let mut out = String::with_capacity(mlir.len() + 200);
    out.push_str(&mlir[..parameters_end]);
    out.push_str(&format!(" -> ({inner}{}tensor<f32>) ", comma_after(inner)));
    out.push_str(&mlir[body..last_line]);
    out.push_str(&format!("%{STOP} = stablehlo.custom_call @{STOP}() {{api_version = 4 : i32}} : () -> tensor<f32>\n"));
    out.push_str(&format!("return {names}{}%{STOP} : {types}{}tensor<f32>\n", comma_after(names), comma_after(types)));
    out.push_str(&mlir[end..]);
    Ok(out)
}

fn incomplete(missing: &str) -> Error {
    Error::invalid_argument(format!("the program cannot be partitioned without compiling it: it has no {missing}"))
}

/// The separator between a list and an additional entry.
fn comma_after(list: &str) -> &'static str {
    if list.is_empty() { "" } else { ", " }
}

/// The values that a line returns, and their types: `return %x : tensor<f32>` or
/// `"func.return"(%x) : (tensor<f32>) -> ()`.
fn returned(line: &str) -> Option<(&str, &str)> {
    if let Some(generic) = line.strip_prefix("\"func.return\"(") {
        let (names, types) = generic.split_once(") : (")?;
        return Some((names, types.strip_suffix(") -> ()")?));
    }
    let values = line.strip_prefix("func.return").or_else(|| line.strip_prefix("return"))?.trim();
    Some(values.split_once(" : ").unwrap_or(("", "")))
}

/// The position after the bracket that closes the one at `open`. Brackets in quotes are ignored.
fn closing(text: &str, open: usize) -> Option<usize> {
    let (mut depth, mut quoted, mut escaped) = (0usize, false, false);
    for (i, byte) in text.bytes().enumerate().skip(open) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            _ if quoted => {}
            b'(' | b'{' => depth += 1,
            b')' | b'}' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(i + 1);
                }
            }
            _ => {}
        }
    }
    None
}

/// The position of the brace that opens a function's body. It follows the results, whose attributes can contain braces.
fn body_start(text: &str, after_parameters: usize) -> Option<usize> {
    let after = text[after_parameters..].trim_start();
    let mut position = text.len() - after.len();
    if let Some(results) = after.strip_prefix("->") {
        position = text.len() - results.trim_start().len();
        if text[position..].starts_with('(') {
            position = closing(text, position)?;
        } else {
            position += text[position..].find('{')?;
        }
    }
    let body = text[position..].trim_start();
    body.starts_with('{').then_some(text.len() - body.len())
}

/// A temporary folder of this process, deleted on drop.
struct Folder(PathBuf);

impl Folder {
    fn make() -> Result<Folder> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("shardax-partition-{}-{number}", std::process::id()));
        let mut builder = fs::DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        // Left over from a killed process with the same number.
        let _ = fs::remove_dir_all(&path);
        builder.create(&path).map_err(|error| cannot(&path, &error))?;
        Ok(Folder(path))
    }

    /// The dump of the partitioned module.
    fn dumped(&self) -> Result<Vec<u8>> {
        let entries = fs::read_dir(&self.0).map_err(|error| cannot(&self.0, &error))?;
        let file = entries.flatten().map(|entry| entry.path()).find(|path| path.to_string_lossy().ends_with(DUMPED));
        let Some(file) = file else {
            return Err(Error::new(
                Code::Unimplemented,
                format!("the plugin does not show the partitioned program: it wrote no file that ends in {DUMPED:?}"),
            ));
        };
        let bytes = fs::read(&file).map_err(|error| cannot(&file, &error))?;
        const MODULE: u32 = 1;
        let module = Wire::parse(&bytes)?.bytes(MODULE).map(<[u8]>::to_vec);
        module.ok_or_else(|| Error::new(Code::DataLoss, "the plugin's dump has no module"))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn cannot(path: &Path, error: &std::io::Error) -> Error {
    Error::new(Code::Unknown, format!("cannot use the folder {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_added_to_any_main() {
        let stop = "%shardax_stop = stablehlo.custom_call @shardax_stop() {api_version = 4 : i32} : () -> tensor<f32>";
        let none = with_stop("func.func @main() {\n  return\n}").unwrap();
        assert_eq!(
            none,
            format!("func.func @main() -> (tensor<f32>) {{\n{stop}\nreturn %shardax_stop : tensor<f32>\n}}")
        );
        let one_result =
            with_stop("func.func public @main(%x: tensor<2xf32>) -> tensor<2xf32> {\n  return %x : tensor<2xf32>\n}");
        assert!(one_result.unwrap().contains("-> (tensor<2xf32>, tensor<f32>) {\n"));
        let two = with_stop(
            "func.func @main(%x: tensor<f32> {a = \"){\"}) -> (tensor<f32> {b = {}}, tensor<f32>) {\n\
             func.return %x, %x : tensor<f32>, tensor<f32>\n}\nfunc.func @other() {\n return\n}",
        )
        .unwrap();
        assert!(two.contains("-> (tensor<f32> {b = {}}, tensor<f32>, tensor<f32>) {\n"), "{two}");
        assert!(
            two.contains("return %x, %x, %shardax_stop : tensor<f32>, tensor<f32>, tensor<f32>\n}\nfunc.func @other()")
        );
    }

    #[test]
    fn both_forms_of_return_are_read() {
        assert_eq!(returned("func.return %a, %b : tensor<f32>, i1"), Some(("%a, %b", "tensor<f32>, i1")));
        assert_eq!(returned("\"func.return\"(%a, %b) : (tensor<f32>, i1) -> ()"), Some(("%a, %b", "tensor<f32>, i1")));
        assert_eq!((returned("return"), returned("\"func.return\"() : () -> ()")), (Some(("", "")), Some(("", ""))));
        assert_eq!(returned("%a = stablehlo.add %b, %c : i1"), None);
    }

    #[test]
    fn a_text_without_main_is_an_error() {
        for (text, lacks) in [("", "function @main"), ("@main(", "end of its parameters"), ("@main()", "body")] {
            let error = with_stop(text).unwrap_err();
            assert_eq!(
                error.message,
                format!("the program cannot be partitioned without compiling it: it has no {lacks}")
            );
        }
    }
}
