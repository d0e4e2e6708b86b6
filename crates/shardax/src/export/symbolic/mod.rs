//! Symbolic sizes of exported functions, like `jax.export.symbolic_shape`.
//!
//! The sizes of traced arrays are numbers, so a function is traced for several sizes of each symbol. The differences
//! between these programs must be numbers that are expressions of the symbols ([`template`]), and further sizes,
//! including the smallest and the largest, must match the expressions. Anything else is an error with the user's line.
//!
//! As in JAX, the program of the other sizes computes a size of 1, because the program for 1 lacks broadcasts. Its
//! results have the same types.

mod size;
mod symbols;
mod template;

use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) use size::Size;
pub(super) use symbols::Symbols;

use super::program::{Exchanged, Source, Symbolic};
use crate::core::array::Array;
use crate::core::lower::{Platform, source_on};
use crate::core::program::Aval;
use crate::error::{Error, Result, err};
use crate::runtime::aot::{shape_dtype_struct, shape_dtype_struct_on};
use crate::runtime::load::Request;
use crate::shape::{Shape, with_open_sizes};

/// A function traced for known sizes, and the requests lowered for it and its derivatives.
pub(super) type Traced = (Exchanged, Vec<Request>);

/// The first difference between two programs: the derivative, the platform, and the line of the text.
struct Difference {
    order: usize,
    line: Option<(String, usize)>,
    what: String,
}

impl Difference {
    fn of(what: impl Into<String>) -> Difference {
        Difference { order: 0, line: None, what: what.into() }
    }

    fn deeper(self) -> Difference {
        Difference { order: self.order + 1, ..self }
    }
}

/// Builds the function for all sizes from traces for some sizes.
pub(super) fn exported(
    symbols: &Symbols,
    sizes: &[Vec<Size>],
    trace: &dyn Fn(&[usize]) -> Result<Traced>,
) -> Result<Exchanged> {
    let shapes = sizes.iter().map(|sizes| shape(sizes, &symbols.corner()).map(|shape| shape.to_vec()));
    symbols.solved(sizes, &shapes.collect::<Result<Vec<_>>>()?)?;
    let points = Size::grid(&symbols.corner());
    let (mut programs, mut requests) = (Vec::new(), Vec::new());
    for point in &points {
        let (program, lowered) = trace_at(symbols, trace, point)?;
        programs.push(program);
        requests.push(lowered);
        let (first, last) = (&programs[0], &programs[programs.len() - 1]);
        // Compares programs as soon as they are traced, so that an unrolled program is never traced for large sizes.
        let alike = alike(first, last).and_then(|()| lines(first, last));
        alike.map_err(|found| rejected(found, symbols, [&points[0], point], &requests[requests.len() - 1]))?;
    }
    let grid_programs: Vec<&Exchanged> = programs.iter().collect();
    // The grid determines the program, so its own texts must come back for the points of the grid.
    let open = merged(symbols, &grid_programs)
        .map_err(|found| rejected(found, symbols, [&points[0], &points[1]], &requests[1]))?;
    for (point, program) in points.iter().zip(&programs).skip(1) {
        matches(&open, point, program).map_err(|found| rejected(found, symbols, [&points[0], point], &requests[0]))?;
    }
    // Programs of a large model need much memory, and the grid is no longer needed.
    drop((programs, requests));
    for point in symbols.others() {
        let (program, lowered) = trace_at(symbols, trace, &point)?;
        matches(&open, &point, &program).map_err(|found| rejected(found, symbols, [&points[0], &point], &lowered))?;
    }
    // A program for a size of 1 has fewer broadcasts, so only its types are compared.
    for point in symbols.ones() {
        let (program, lowered) = trace_at(symbols, trace, &point)?;
        let alike = alike(&open, &program).and_then(|()| same_types(&open, &point, &program));
        alike.map_err(|found| rejected(found, symbols, [&points[0], &point], &lowered))?;
    }
    Ok(open)
}

/// Traces the function for these values of the symbols.
fn trace_at(symbols: &Symbols, trace: &dyn Fn(&[usize]) -> Result<Traced>, values: &[usize]) -> Result<Traced> {
    with_open_sizes(|| trace(values)).map_err(|e| e.context(format!("with {}", symbols.named(values))))
}

/// The types of arguments for these values of the symbols, to trace with.
pub(super) fn arguments(leaves: &[Array], sizes: &[Vec<Size>], values: &[usize]) -> Result<Vec<Array>> {
    leaves.iter().zip(sizes).map(|(leaf, sizes)| argument(leaf, shape(sizes, values)?)).collect()
}

fn argument(leaf: &Array, shape: Shape) -> Result<Array> {
    if *leaf.shape() == *shape {
        return Ok(leaf.clone());
    }
    Ok(match leaf.committed_sharding() {
        Some(sharding) => shape_dtype_struct_on(shape, leaf.dtype(), sharding.clone()),
        None => shape_dtype_struct(shape, leaf.dtype()),
    })
}

fn shape(sizes: &[Size], values: &[usize]) -> Result<Shape> {
    let shape = sizes.iter().map(|size| usize::try_from(size.at(values)?).ok()).collect::<Option<Shape>>();
    shape.ok_or_else(|| {
        err!(Value, "a size is negative or beyond 64 bits where the symbols are {values:?}")
            .help("write sizes that are positive numbers for all values of the symbols within their bounds")
    })
}

/// The error for a function whose programs do not form one function of all sizes.
fn rejected(found: Difference, symbols: &Symbols, points: [&[usize]; 2], lowered: &[Request]) -> Error {
    let [a, b] = points.map(|point| symbols.named(point));
    let kind = if found.order > 0 { "derivative" } else { "function" };
    let error = err!(Value, "the programs of the {kind} for {a} and for {b} differ by more than sizes: {}", found.what).help(
        "operations, loops and values may depend on symbolic sizes only through sums and products; bound the symbol to sizes that are treated alike (\"b >= 2\", \"b <= 64\"), or export one program for each size",
    );
    let source = found.line.and_then(|(platform, line)| {
        let request = lowered.get(found.order)?;
        let text = request.portable_text(Platform::named(&platform), true).ok()?;
        source_on(&text, line, &request.program)
    });
    match source {
        Some(source) => error.at(source),
        None => error,
    }
}

fn rank_and_type(aval: &Aval) -> (crate::dtype::DType, usize, bool) {
    (aval.dtype, aval.rank(), aval.weak)
}

fn same_ranks_and_types(a: &[Aval], b: &[Aval]) -> bool {
    a.iter().map(rank_and_type).eq(b.iter().map(rank_and_type))
}

fn captured_bytes(x: &Array) -> Result<Vec<u8>, Difference> {
    x.to_bytes().map_err(|e| Difference::of(e.to_string()))
}

/// Compares everything except sizes and texts.
fn alike(a: &Exchanged, b: &Exchanged) -> Result<(), Difference> {
    let differ = [
        (!same_ranks_and_types(&a.in_avals, &b.in_avals) || a.kept != b.kept, "which arguments they use"),
        (!same_ranks_and_types(&a.out_avals, &b.out_avals), "the types of their results"),
        (
            (&a.in_tree, &a.out_tree) != (&b.in_tree, &b.out_tree),
            "the structure of their results, or a static value in it",
        ),
        ((&a.in_specs, &a.out_specs, &a.axes) != (&b.in_specs, &b.out_specs, &b.axes), "their shardings"),
        (!a.captures.iter().map(Array::aval).eq(b.captures.iter().map(Array::aval)), "the arrays that they capture"),
    ];
    if let Some((_, what)) = differ.into_iter().find(|(differ, _)| *differ) {
        return Err(Difference::of(what));
    }
    // Reads values only after everything cheaper has been compared.
    for (x, y) in a.captures.iter().zip(&b.captures) {
        if captured_bytes(x)? != captured_bytes(y)? {
            return Err(Difference::of(format!("the values of a captured {}", x.aval())));
        }
    }
    match (&a.vjp, &b.vjp) {
        (Some(a), Some(b)) => alike(a, b).map_err(Difference::deeper),
        _ => Ok(()),
    }
}

/// Compares the numbers of lines of the texts, and the starts of the lines.
fn lines(a: &Exchanged, b: &Exchanged) -> Result<(), Difference> {
    for (platform, text) in &b.texts {
        let (mut mine, mut theirs) = (a.texts[platform].lines(), text.lines());
        let mut number = 0;
        loop {
            match (mine.next(), theirs.next()) {
                (None, None) => break,
                (Some(x), Some(y)) if operation_name(x) == operation_name(y) => number += 1,
                (x, y) => return Err(on_line(platform, number, x.unwrap_or_default(), y.unwrap_or_default())),
            }
        }
    }
    match (&a.vjp, &b.vjp) {
        (Some(a), Some(b)) => lines(a, b).map_err(Difference::deeper),
        _ => Ok(()),
    }
}

/// The start of a line up to its operands and attributes, without the number of a constant.
fn operation_name(line: &str) -> &str {
    line.split(['(', '<']).next().unwrap_or_default().trim_end_matches(|c: char| c.is_ascii_digit())
}

/// The start of a line in backquotes, so that an error stays readable.
fn shortened(line: &str) -> String {
    match line.trim().char_indices().nth(160) {
        Some((end, _)) => format!("`{}…`", &line.trim()[..end]),
        None => format!("`{}`", line.trim()),
    }
}

fn on_line(platform: &str, line: usize, a: &str, b: &str) -> Difference {
    Difference {
        line: Some((platform.to_owned(), line)),
        ..Difference::of(format!("{} and {}", shortened(a), shortened(b)))
    }
}

/// Builds the program for all sizes from the programs on the grid.
fn merged(symbols: &Symbols, all: &[&Exchanged]) -> Result<Exchanged, Difference> {
    let (in_avals, in_sizes) = merged_types(symbols, all, |program| &program.in_avals, "argument")?;
    let (out_avals, out_sizes) = merged_types(symbols, all, |program| &program.out_avals, "result")?;
    let mut texts = BTreeMap::new();
    for platform in all[0].texts.keys() {
        let platform_texts: Vec<&str> = all.iter().map(|program| &*program.texts[platform]).collect();
        let text = template::template(symbols, &platform_texts).map_err(|line| {
            let [a, b] = [0, 1].map(|i| platform_texts[i].lines().nth(line).unwrap_or_default());
            on_line(platform, line, a, b)
        })?;
        texts.insert(platform.clone(), Arc::from(text));
    }
    // All programs have a derivative, or none has, because they were exported with one order.
    let vjps = all.iter().map(|one| one.vjp.as_deref()).collect::<Option<Vec<_>>>();
    let vjp = vjps.map(|vjps| merged(symbols, &vjps).map(Arc::new).map_err(Difference::deeper)).transpose()?;
    let source = Source::Template(symbols.clone());
    Ok(Exchanged {
        in_avals,
        out_avals,
        texts,
        vjp,
        symbolic: Some(Arc::new(Symbolic::of(in_sizes, out_sizes, source))),
        ..all[0].clone()
    }
    .typed())
}

/// The types and size expressions of the arguments or of the results, which `avals_of` returns. A size without a known
/// value is 0 in the type.
fn merged_types(
    symbols: &Symbols,
    programs: &[&Exchanged],
    avals_of: fn(&Exchanged) -> &Vec<Aval>,
    what: &str,
) -> Result<(Vec<Aval>, Vec<Vec<String>>), Difference> {
    let mut types = (Vec::new(), Vec::new());
    for (i, first) in avals_of(programs[0]).iter().enumerate() {
        let sizes = (0..first.rank()).map(|dim| {
            let values: Vec<i64> = programs.iter().map(|program| avals_of(program)[i].shape[dim] as i64).collect();
            let size = Size::from_values(&symbols.corner(), &values);
            size.ok_or_else(|| Difference::of(format!("{what} {i} has the sizes {values:?} along dimension {dim}")))
        });
        let sizes = sizes.collect::<Result<Vec<_>, _>>()?;
        types.0.push(first.with_shape(sizes.iter().map(|size| size.known().unwrap_or(0)).collect::<Shape>()));
        types.1.push(sizes.iter().map(|size| size.text(&symbols.names)).collect());
    }
    Ok(types)
}

/// Compares the program for all sizes with the program for some sizes.
fn matches(open: &Exchanged, point: &[usize], program: &Exchanged) -> Result<(), Difference> {
    alike(open, program)?;
    let sized = open.at(point).map_err(|e| Difference::of(e.message()))?;
    same(&sized, program)
}

fn same(a: &Exchanged, b: &Exchanged) -> Result<(), Difference> {
    for (platform, text) in &b.texts {
        if let Some((number, (x, y))) =
            a.texts[platform].lines().zip(text.lines()).enumerate().find(|(_, (x, y))| x != y)
        {
            return Err(on_line(platform, number, x, y));
        }
        if a.texts[platform].lines().count() != text.lines().count() {
            return Err(Difference::of("the number of their operations"));
        }
    }
    types_of_both(a, b)?;
    match (&a.vjp, &b.vjp) {
        (Some(a), Some(b)) => same(a, b).map_err(Difference::deeper),
        _ => Ok(()),
    }
}

fn same_types(open: &Exchanged, point: &[usize], program: &Exchanged) -> Result<(), Difference> {
    types_of_both(&open.at(point).map_err(|e| Difference::of(e.message()))?, program)
}

fn types_of_both(a: &Exchanged, b: &Exchanged) -> Result<(), Difference> {
    if (&a.in_avals, &a.out_avals) == (&b.in_avals, &b.out_avals) {
        Ok(())
    } else {
        Err(Difference::of(format!("results {} and {}", comma_list(&a.out_avals), comma_list(&b.out_avals))))
    }
}

fn comma_list(avals: &[Aval]) -> String {
    avals.iter().map(Aval::to_string).collect::<Vec<_>>().join(", ")
}

impl Exchanged {
    /// The program for these values of its symbols.
    pub(super) fn at(&self, values: &[usize]) -> Result<Exchanged> {
        let Some(Symbolic { in_sizes, out_sizes, source: Source::Template(symbols), .. }) = self.symbolic.as_deref()
        else {
            return Ok(self.clone());
        };
        let vjp = self.vjp.as_ref().map(|vjp| vjp.at(values).map(Arc::new)).transpose()?;
        let mut texts = BTreeMap::new();
        for (platform, text) in &self.texts {
            let text = template::written(text, &symbols.names, values).ok_or_else(|| self.no_sizes(values))?;
            texts.insert(platform.clone(), Arc::from(text));
        }
        let in_avals = self.shaped(&self.in_avals, in_sizes, symbols, values)?;
        let out_avals = self.shaped(&self.out_avals, out_sizes, symbols, values)?;
        // Compiled programs are cached by digest, so each size needs a digest of its own.
        let digest = format!("{} {values:?}", self.digest);
        Ok(Exchanged { in_avals, out_avals, texts, vjp, digest, symbolic: None, ..self.clone() }.typed())
    }

    /// The types with these sizes. Fails if an array would not fit into the address space.
    fn shaped(&self, avals: &[Aval], sizes: &[Vec<String>], symbols: &Symbols, values: &[usize]) -> Result<Vec<Aval>> {
        let shaped = avals.iter().zip(sizes).map(|(aval, sizes)| {
            let shape = shape(&symbols.read(sizes)?, values)?;
            let bytes = shape.iter().try_fold(aval.dtype.byte_size(), |bytes, size| bytes.checked_mul(*size));
            bytes.filter(|bytes| isize::try_from(*bytes).is_ok()).ok_or_else(|| self.no_sizes(values))?;
            Ok(aval.with_shape(shape))
        });
        shaped.collect()
    }

    fn no_sizes(&self, values: &[usize]) -> Error {
        err!(Value, "{} has no sizes for {values:?}", self.name).help("call the function with smaller arrays")
    }
}
