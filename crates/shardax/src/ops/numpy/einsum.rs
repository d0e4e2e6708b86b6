//! `einsum`: sums of products, with a letter for each dimension.

use std::sync::Arc;

use super::contraction_order::{self, MAX_OPERANDS, Set};
use super::matrices::merge_dims;
use super::promote_args_of;
use crate::core::array::Array;
use crate::core::program::Aval;
use crate::core::program::trace::at_caller;
use crate::dtype::DType;
use crate::error::{Error, Result, bail, err};
use crate::ops::auto_axes::in_auto_axes;
use crate::ops::lax::{self, DotOptions};
use crate::ops::operators::IntoArrays;
use crate::ops::primitive::reduce::Reducer;
use crate::sharding::{DimSpec, Typed};

/// A dimension label: a letter, or a position in an ellipsis counted from its end.
type Label = u32;

const ELLIPSIS: Label = 0x80_0000;

/// An array, and the label of each of its dimensions.
#[derive(Clone)]
struct Term {
    array: Array,
    labels: Vec<Label>,
}

/// Sums of products of arrays, by Einstein's convention. Each dimension has a letter; letters that the result lacks are
/// summed over. Without `->`, the result has the letters that occur once, in alphabetical order. `...` stands for any
/// number of leading dimensions, which broadcast. With more than two arrays, the cheapest pairs are multiplied first.
/// [`DotOptions`] has options.
///
/// ```
/// # use shardax::prelude::*;
/// let (x, y) = (array([[1.0f32, 2.0], [3.0, 4.0]]), array([10.0f32, 1.0]));
/// assert_eq!(einsum("ij,j->i", [&x, &y]).to_vec::<f32>()?, [12.0, 34.0]);
/// assert_eq!(einsum("ii", [&x]).item::<f32>()?, 5.0);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error if the letters do not match the arrays, or the sizes do not match each other.
#[track_caller]
pub fn einsum<Form>(spec: &str, operands: impl IntoArrays<Form>) -> Array {
    DotOptions::new().einsum(spec, operands)
}

impl DotOptions {
    /// See [`einsum`](einsum()).
    #[track_caller]
    pub fn einsum<Form>(&self, spec: &str, operands: impl IntoArrays<Form>) -> Array {
        let operands = operands.into_arrays();
        let result = at_caller(|| contract(spec, &operands.iter().collect::<Vec<_>>(), self));
        let like = operands.first().cloned().unwrap_or_else(|| Array::from(0.0f32));
        Array::from_result(result, &like)
    }
}

/// Multiplies the operands, two at a time.
fn contract(spec: &str, operands: &[&Array], options: &DotOptions) -> Result<Array> {
    if let Some(out) = options.out_sharding.as_ref().filter(|_| operands.len() > 2) {
        // The compiler chooses the sharding of the intermediate products.
        let unsharded = DotOptions { out_sharding: None, ..options.clone() };
        let arrays: Vec<Array> = operands.iter().map(|x| (*x).clone()).collect();
        return in_auto_axes(&arrays, out, |args| contract(spec, &args.iter().collect::<Vec<_>>(), &unsharded));
    }
    // Check the sizes of each label, take diagonals of repeated labels, and drop dimensions of size 1 that broadcast.
    let (inputs, output) = parse(spec, operands)?;
    let arrays = promote_args_of("einsum", operands)?;
    for (labels, array) in inputs.iter().zip(&arrays) {
        if let Some((label, sizes)) = mismatch_within(labels, array.shape()) {
            return Err(mismatch(spec, label, &sizes, operands));
        }
    }
    let terms: Vec<Term> = inputs
        .iter()
        .zip(&arrays)
        .map(|(labels, array)| diagonals(Term { array: array.clone(), labels: labels.clone() }))
        .collect::<Result<_>>()?;
    let size = |label: Label| {
        let sizes = terms.iter().flat_map(|t| t.labels.iter().zip(t.array.shape()));
        sizes.filter(|(l, _)| **l == label).map(|(_, n)| *n).find(|n| *n != 1).unwrap_or(1)
    };
    for term in &terms {
        let wrong = term.labels.iter().zip(term.array.shape()).find(|(l, n)| !sizes_fit(**n, size(**l)));
        if let Some((&l, n)) = wrong {
            return Err(mismatch(spec, l, &format!("{n} and {}", size(l)), operands));
        }
    }
    let mut terms: Vec<Term> = terms.iter().map(|term| without_ones(term, &size)).collect();

    // Labels that only one operand has are summed first, which makes the products smaller.
    for i in 0..terms.len() {
        let needed_labels: Vec<Label> = needed_labels(&terms, &output, &[i]);
        terms[i] = sum_out(&terms[i], &needed_labels);
    }
    let sizes: Vec<usize> = output.iter().map(|l| size(*l)).collect();
    let out = options.out_for(&sizes, operands)?;
    multiply_all(&mut terms, &output, &size, options, out.as_deref())?;
    let [term] = terms.as_slice() else { bail!(Value, "einsum({spec:?}) needs at least one array") };
    let order: Vec<usize> = output.iter().filter_map(|l| term.labels.iter().position(|m| m == l)).collect();
    Ok(options.returned(lax::transpose(&term.array, &order)))
}

/// Multiplies all terms into one. The last product has the sharding `out`.
fn multiply_all(
    terms: &mut Vec<Term>,
    output: &[Label],
    size: &impl Fn(Label) -> usize,
    options: &DotOptions,
    out: Option<&Typed>,
) -> Result<()> {
    // Multiply in the planned order, which names products by the set of their operands. For two operands, or too many for a
    // plan, the cheapest pair is next.
    let mut products = planned(terms, output, size).into_iter();
    let mut sets: Vec<Set> = (0..terms.len()).map(|i| 1 << i.min(MAX_OPERANDS)).collect();
    while terms.len() > 1 {
        let (i, j) = match products.next() {
            Some(pair) => {
                let [left, right] = pair.map(|set| sets.iter().position(|s| *s == set).unwrap_or_default());
                (left.min(right), left.max(right))
            }
            None => cheapest(terms, output, size),
        };
        let needed_labels = needed_labels(terms, output, &[i, j]);
        let out = out.filter(|_| terms.len() == 2).map(|out| (out, output));
        let product = multiply(&terms[i], &terms[j], &needed_labels, options, out);
        product.array.check()?;
        terms.remove(j);
        terms[i] = product;
        let set = sets.remove(j);
        sets[i] |= set;
    }
    Ok(())
}

/// A label that one operand has twice, for dimensions of different sizes, and these sizes.
fn mismatch_within(labels: &[Label], shape: &[usize]) -> Option<(Label, String)> {
    labels.iter().enumerate().find_map(|(b, label)| {
        let a = labels[..b].iter().position(|other| other == label)?;
        (!sizes_fit(shape[a], shape[b])).then(|| (*label, format!("{} and {}", shape[b], shape[a])))
    })
}

/// Dimensions with the same label fit if their sizes are equal or 1.
fn sizes_fit(n: usize, m: usize) -> bool {
    n == m || n == 1 || m == 1
}

/// Parses the labels of the operands and of the result.
fn parse(spec: &str, operands: &[&Array]) -> Result<(Vec<Vec<Label>>, Vec<Label>)> {
    parse_labels(spec, operands).map_err(|why| {
        err!(Value, "einsum({spec:?}) of {}: {why}", types(operands))
            .help("write one letter per dimension, and separate operands by commas: \"ij,jk->ik\"")
    })
}

/// Parses the labels of all operands and of the result; an error is only the reason.
fn parse_labels(spec: &str, operands: &[&Array]) -> Result<(Vec<Vec<Label>>, Vec<Label>), String> {
    let spec: String = spec.chars().filter(|c| !c.is_whitespace()).collect();
    let (left, right) = match spec.split_once("->") {
        Some((left, right)) => (left, Some(right)),
        None => (spec.as_str(), None),
    };
    let parts: Vec<&str> = left.split(',').collect();
    if parts.len() != operands.len() {
        return Err(format!("the letters are for {} arrays, but {} were given", parts.len(), operands.len()));
    }
    let mut hidden = 0;
    let mut inputs = Vec::new();
    for (part, x) in parts.iter().zip(operands) {
        let letters = part.replace("...", "").chars().count();
        let ellipsis_rank =
            x.ndim().checked_sub(letters).filter(|ellipsis_rank| *ellipsis_rank == 0 || part.contains("..."));
        let Some(ellipsis_rank) = ellipsis_rank else {
            return Err(format!("{part:?} has {letters} letters, but its array has {} dimensions", x.ndim()));
        };
        hidden = hidden.max(ellipsis_rank);
        inputs.push(operand_labels(part, ellipsis_rank)?);
    }
    let output = match right {
        Some(right) => operand_labels(right, hidden)?,
        None => {
            let input_labels: Vec<Label> = inputs.iter().flatten().copied().collect();
            // Without an arrow, the result has the labels that appear once, in alphabetical order.
            let letters = input_labels.iter().copied().filter(|l| *l <= ELLIPSIS - hidden as Label);
            let mut unique: Vec<Label> =
                letters.filter(|label| input_labels.iter().filter(|l| *l == label).count() == 1).collect();
            unique.sort_unstable();
            (0..hidden as Label).rev().map(|i| ELLIPSIS - i).chain(unique).collect()
        }
    };
    for (i, l) in output.iter().enumerate() {
        if output[..i].contains(l) {
            return Err(format!("the result has '{}' twice", name(*l)));
        }
        if !inputs.iter().any(|labels| labels.contains(l)) {
            return Err(format!("the result has '{}', which no operand has", name(*l)));
        }
    }
    if let Some(right) = right
        && hidden > 0
        && !right.contains("...")
    {
        return Err("the operands have an ellipsis, but the result has none".to_owned());
    }
    Ok((inputs, output))
}

/// Returns the labels of one operand or of the result, whose ellipsis stands for `hidden` dimensions.
fn operand_labels(part: &str, hidden: usize) -> Result<Vec<Label>, String> {
    let (before, after) = part.split_once("...").unwrap_or((part, ""));
    if let Some(character) = before.chars().chain(after.chars()).find(|c| !c.is_alphabetic()) {
        return Err(format!("{character:?} is not a letter"));
    }
    let ellipsis = (0..hidden as Label).rev().map(|i| ELLIPSIS - i);
    Ok(before.chars().map(|c| c as Label).chain(ellipsis).chain(after.chars().map(|c| c as Label)).collect())
}

fn name(label: Label) -> String {
    char::from_u32(label).filter(|c| c.is_alphabetic()).map_or_else(|| "...".to_owned(), String::from)
}

fn types(operands: &[&Array]) -> String {
    operands.iter().map(|x| x.type_name()).collect::<Vec<_>>().join(" and ")
}

fn mismatch(spec: &str, label: Label, sizes: &str, operands: &[&Array]) -> Error {
    err!(Value, "einsum({spec:?}): dimension '{}' has sizes {sizes} in {}", name(label), types(operands))
        .help("dimensions with the same letter must have equal sizes, or size 1, which is broadcast")
}

/// Replaces dimensions with the same label by their diagonal, so that the term has each label once.
fn diagonals(mut term: Term) -> Result<Term> {
    while let Some((a, b)) = repeated(&term.labels) {
        let (short, long) = (term.array.shape()[a], term.array.shape()[b]);
        term.array = merge_dims(&term.array, a, b)?;
        if short < long {
            // For sizes 1 and n, the diagonal has one element. As in JAX, the other elements of the last dimension become zeros.
            let mut config = vec![(0, 0, 0); term.array.ndim()];
            config[a].1 = (long - short) as i64;
            term.array = lax::pad(&term.array, &Array::zeros_of(&Aval::scalar(term.array.dtype())), &config);
        }
        term.labels.remove(b);
    }
    Ok(term)
}

/// Drops dimensions of size 1 whose label has another size in other terms.
fn without_ones(term: &Term, size: &impl Fn(Label) -> usize) -> Term {
    let full: Vec<bool> = term.labels.iter().zip(term.array.shape()).map(|(l, n)| *n == size(*l)).collect();
    let shape: Vec<usize> = term.array.shape().iter().zip(&full).filter(|(_, f)| **f).map(|(n, _)| *n).collect();
    let labels = term.labels.iter().zip(&full).filter(|(_, f)| **f).map(|(l, _)| *l).collect();
    Term { array: lax::reshape(&term.array, &shape), labels }
}

/// Finds two dimensions with the same label.
fn repeated(labels: &[Label]) -> Option<(usize, usize)> {
    (0..labels.len()).find_map(|b| labels[..b].iter().position(|l| *l == labels[b]).map(|a| (a, b)))
}

/// The labels that the result or a term other than `excluded` has. The product of the excluded terms must have these labels.
fn needed_labels(terms: &[Term], output: &[Label], excluded: &[usize]) -> Vec<Label> {
    let other_terms = terms.iter().enumerate().filter(|(i, _)| !excluded.contains(i));
    other_terms.flat_map(|(_, t)| &t.labels).chain(output).copied().collect()
}

/// Sums over the labels that are not needed.
fn sum_out(term: &Term, needed: &[Label]) -> Term {
    let axes: Vec<usize> = (0..term.labels.len()).filter(|&d| !needed.contains(&term.labels[d])).collect();
    if axes.is_empty() {
        return term.clone();
    }
    let labels = term.labels.iter().copied().filter(|l| needed.contains(l)).collect();
    // The sum of booleans is their "or", as in products of booleans.
    let reducer = if term.array.dtype() == DType::Bool { Reducer::Or } else { Reducer::Sum };
    Term { array: lax::reduce_with(&term.array, reducer, &axes), labels }
}

/// The products in the order with the fewest multiply-adds, if there are few terms.
fn planned(terms: &[Term], output: &[Label], size: &impl Fn(Label) -> usize) -> Vec<[Set; 2]> {
    if !(3..=MAX_OPERANDS).contains(&terms.len()) {
        return Vec::new();
    }
    let labels: Vec<&[Label]> = terms.iter().map(|term| &term.labels[..]).collect();
    contraction_order::search(&labels, output, size)
}

/// The pair of terms whose product is smallest compared with the terms.
fn cheapest(terms: &[Term], output: &[Label], size: &impl Fn(Label) -> usize) -> (usize, usize) {
    let mut best = (f64::INFINITY, (0, 1));
    for j in 1..terms.len() {
        for i in 0..j {
            let needed = needed_labels(terms, output, &[i, j]);
            let mut result: Vec<Label> =
                terms[i].labels.iter().chain(&terms[j].labels).copied().filter(|l| needed.contains(l)).collect();
            result.sort_unstable();
            result.dedup();
            let [result, first, second] = [&result, &terms[i].labels, &terms[j].labels]
                .map(|labels| labels.iter().map(|l| size(*l) as f64).product::<f64>());
            let cost = result - first - second;
            if cost < best.0 {
                best = (cost, (i, j));
            }
        }
    }
    best.1
}

/// The product of two terms, summed over their common labels that are not `needed`. `out` is the sharding of the result,
/// with the label of each dimension.
fn multiply(a: &Term, b: &Term, needed: &[Label], options: &DotOptions, out: Option<(&Typed, &[Label])>) -> Term {
    let common: Vec<Label> = a.labels.iter().copied().filter(|l| b.labels.contains(l)).collect();
    let (batch, contract): (Vec<Label>, Vec<Label>) = common.iter().partition(|l| needed.contains(l));
    let [a_free, b_free] =
        [a, b].map(|term| term.labels.iter().copied().filter(|l| !common.contains(l)).collect::<Vec<_>>());
    let labels = [batch.clone(), a_free, b_free].concat();
    let out = out.map(|(typed, output)| {
        let positions = labels.iter().map(|l| output.iter().position(|m| m == l));
        Arc::new(typed.with_dims(positions.map(|d| d.map_or(DimSpec::None, |d| typed.dims()[d].clone()))))
    });
    let array = options.dot_general_as(
        &a.array,
        &b.array,
        (&dims_of(a, &contract), &dims_of(b, &contract)),
        (&dims_of(a, &batch), &dims_of(b, &batch)),
        out,
    );
    Term { array, labels }
}

/// The dimensions of a term that have these labels.
fn dims_of(term: &Term, labels: &[Label]) -> Vec<usize> {
    labels.iter().filter_map(|l| term.labels.iter().position(|m| m == l)).collect()
}
