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
    let at = |values: &[usize]| {
        let made = with_open_sizes(|| trace(values));
        made.map_err(|e| e.context(format!("with {}", symbols.named(values))))
    };
    let shapes = sizes.iter().map(|sizes| shape(sizes, &symbols.corner()).map(|shape| shape.to_vec()));
    symbols.solved(sizes, &shapes.collect::<Result<Vec<_>>>()?)?;
    let points = Size::grid(&symbols.corner());
    let (mut programs, mut requests) = (Vec::new(), Vec::new());
    for point in &points {
        let (program, lowered) = at(point)?;
        programs.push(program);
        requests.push(lowered);
        let (first, last) = (&programs[0], &programs[programs.len() - 1]);
        // Compares programs as soon as they are traced, so that an unrolled program is never traced for large sizes.
        let alike = alike(first, last).and_then(|()| lines(first, last));
        alike.map_err(|found| rejected(found, symbols, [&points[0], point], &requests[requests.len() - 1]))?;
    }
    let all: Vec<&Exchanged> = programs.iter().collect();
    let open =
        merged(symbols, &all).map_err(|found| rejected(found, symbols, [&points[0], &points[1]], &requests[1]))?;
    for (point, program) in points.iter().zip(&programs).skip(1) {
        matches(&open, point, program).map_err(|found| rejected(found, symbols, [&points[0], point], &requests[0]))?;
    }
    drop((programs, requests));
    for point in symbols.others() {
        let (program, lowered) = at(&point)?;
        matches(&open, &point, &program).map_err(|found| rejected(found, symbols, [&points[0], &point], &lowered))?;
    }
    for point in symbols.ones() {
        let (program, lowered) = at(&point)?;
        let alike = alike(&open, &program).and_then(|()| same_types(&open, &point, &program));
        alike.map_err(|found| rejected(found, symbols, [&points[0], &point], &lowered))?;
    }
    Ok(open)
}

/// The types of arguments for these values of the symbols, to trace with.
pub(super) fn arguments(leaves: &[Array], sizes: &[Vec<Size>], values: &[usize]) -> Result<Vec<Array>> {
    let one = |(leaf, sizes): (&Array, &Vec<Size>)| {
        let shape = shape(sizes, values)?;
        if *leaf.shape() == *shape {
            return Ok(leaf.clone());
        }
        Ok(match leaf.committed_sharding() {
            Some(sharding) => shape_dtype_struct_on(shape, leaf.dtype(), sharding.clone()),
            None => shape_dtype_struct(shape, leaf.dtype()),
        })
    };
    leaves.iter().zip(sizes).map(one).collect()
}

fn shape(sizes: &[Size], values: &[usize]) -> Result<Shape> {
    let size = |size: &Size| usize::try_from(size.at(values)?).ok();
    let shape = sizes.iter().map(size).collect::<Option<Shape>>();
    shape.ok_or_else(|| {
        err!(Value, "a size is negative or beyond 64 bits where the symbols are {values:?}")
            .help("write sizes that are positive numbers for all values of the symbols within their bounds")
    })
}

/// The error for a function whose programs do not form one function of all sizes.
fn rejected(found: Difference, symbols: &Symbols, points: [&[usize]; 2], lowered: &[Request]) -> Error {
    let [a, b] = points.map(|point| symbols.named(point));
    let of = if found.order > 0 { "derivative" } else { "function" };
    let error = err!(Value, "the programs of the {of} for {a} and for {b} differ by more than sizes: {}", found.what).help(
        "do not let operations, loops or values follow from open sizes in another way than as sums and products; bound the symbol to sizes that are treated alike (\"b >= 2\", \"b <= 64\"), or export one program for each size",
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

/// Compares everything except sizes and texts.
fn alike(a: &Exchanged, b: &Exchanged) -> Result<(), Difference> {
    let types = |avals: &[Aval]| avals.iter().map(rank_and_type).collect::<Vec<_>>();
    let captures = |of: &Exchanged| of.captures.iter().map(Array::aval).collect::<Vec<_>>();
    let differ = [
        (types(&a.in_avals) != types(&b.in_avals) || a.kept != b.kept, "which arguments they use"),
        (types(&a.out_avals) != types(&b.out_avals), "the types of their results"),
        (
            (&a.in_tree, &a.out_tree) != (&b.in_tree, &b.out_tree),
            "the structure of their results, or a static value in it",
        ),
        ((&a.in_specs, &a.out_specs, &a.axes) != (&b.in_specs, &b.out_specs, &b.axes), "their shardings"),
        (captures(a) != captures(b), "the arrays that they capture"),
    ];
    if let Some((_, what)) = differ.into_iter().find(|(differ, _)| *differ) {
        return Err(Difference::of(what));
    }
    for (x, y) in a.captures.iter().zip(&b.captures) {
        let bytes = |x: &Array| x.to_bytes().map_err(|e| Difference::of(e.to_string()));
        if bytes(x)? != bytes(y)? {
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
    let word = |line: &str| {
        line.split(['(', '<']).next().unwrap_or_default().trim_end_matches(|c: char| c.is_ascii_digit()).to_owned()
    };
    for (platform, text) in &b.texts {
        let (mut mine, mut theirs) = (a.texts[platform].lines(), text.lines());
        let mut number = 0;
        loop {
            match (mine.next(), theirs.next()) {
                (None, None) => break,
                (Some(x), Some(y)) if word(x) == word(y) => number += 1,
                (x, y) => return Err(on_line(platform, number, x.unwrap_or_default(), y.unwrap_or_default())),
            }
        }
    }
    match (&a.vjp, &b.vjp) {
        (Some(a), Some(b)) => lines(a, b).map_err(Difference::deeper),
        _ => Ok(()),
    }
}

fn on_line(platform: &str, line: usize, a: &str, b: &str) -> Difference {
    let short = |text: &str| match text.trim().char_indices().nth(160) {
        Some((end, _)) => format!("`{}…`", &text.trim()[..end]),
        None => format!("`{}`", text.trim()),
    };
    Difference { line: Some((platform.to_owned(), line)), ..Difference::of(format!("{} and {}", short(a), short(b))) }
}

/// Builds the program for all sizes from the programs on the grid.
fn merged(symbols: &Symbols, all: &[&Exchanged]) -> Result<Exchanged, Difference> {
    let types = |of: &dyn Fn(&Exchanged) -> &Vec<Aval>, what: &str| {
        let one = |i: usize| {
            let first = &of(all[0])[i];
            let sizes = (0..first.rank()).map(|dim| {
                let values: Vec<i64> = all.iter().map(|one| of(one)[i].shape[dim] as i64).collect();
                let size = Size::of_values(&symbols.corner(), &values);
                size.ok_or_else(|| Difference::of(format!("{what} {i} has the sizes {values:?} along dimension {dim}")))
            });
            let sizes = sizes.collect::<Result<Vec<_>, _>>()?;
            let known = |size: &Size| size.at(&[]).and_then(|size| usize::try_from(size).ok()).unwrap_or(0);
            let aval = first.with_shape(sizes.iter().map(known).collect::<Shape>());
            Ok((aval, sizes.iter().map(|size| size.text(&symbols.names)).collect::<Vec<_>>()))
        };
        (0..of(all[0]).len()).map(one).collect::<Result<(Vec<_>, Vec<_>), Difference>>()
    };
    let (in_avals, in_sizes) = types(&|of| &of.in_avals, "argument")?;
    let (out_avals, out_sizes) = types(&|of| &of.out_avals, "result")?;
    let mut texts = BTreeMap::new();
    for platform in all[0].texts.keys() {
        let each: Vec<&str> = all.iter().map(|one| &*one.texts[platform]).collect();
        let text = template::template(symbols, &each).map_err(|line| {
            let of = |text: &&str| text.lines().nth(line).unwrap_or_default().to_owned();
            on_line(platform, line, &of(&each[0]), &of(&each[1]))
        })?;
        texts.insert(platform.clone(), Arc::from(text));
    }
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
    let list = |avals: &[Aval]| avals.iter().map(Aval::to_string).collect::<Vec<_>>().join(", ");
    match (&a.in_avals, &a.out_avals) == (&b.in_avals, &b.out_avals) {
        true => Ok(()),
        false => Err(Difference::of(format!("results {} and {}", list(&a.out_avals), list(&b.out_avals)))),
    }
}

impl Exchanged {
    /// The program for these values of its symbols.
    pub(super) fn at(&self, values: &[usize]) -> Result<Exchanged> {
        let damaged =
            || err!(Value, "{} has no sizes for {values:?}", self.name).help("call the function with smaller arrays");
        let Some(Symbolic { in_sizes, out_sizes, source: Source::Template(symbols), .. }) = self.symbolic.as_deref()
        else {
            return Ok(self.clone());
        };
        let shaped = |avals: &[Aval], sizes: &[Vec<String>]| -> Result<Vec<Aval>> {
            let one = |(aval, sizes): (&Aval, &Vec<String>)| {
                let shape = shape(&symbols.read(sizes)?, values)?;
                let bytes = shape.iter().try_fold(aval.dtype.byte_size(), |all, size| all.checked_mul(*size));
                bytes.filter(|bytes| isize::try_from(*bytes).is_ok()).ok_or_else(damaged)?;
                Ok(aval.with_shape(shape))
            };
            avals.iter().zip(sizes).map(one).collect()
        };
        let text = |(platform, text): (&String, &Arc<str>)| {
            let text = template::written(text, &symbols.names, values).ok_or_else(damaged)?;
            Ok((platform.clone(), Arc::from(text)))
        };
        let vjp = self.vjp.as_ref().map(|vjp| vjp.at(values).map(Arc::new)).transpose()?;
        let texts = self.texts.iter().map(text).collect::<Result<_>>()?;
        let (in_avals, out_avals) = (shaped(&self.in_avals, in_sizes)?, shaped(&self.out_avals, out_sizes)?);
        let digest = format!("{} {values:?}", self.digest);
        Ok(Exchanged { in_avals, out_avals, texts, vjp, digest, symbolic: None, ..self.clone() }.typed())
    }
}
