//! Custom calls. Calls of jaxlib's LAPACK functions become functions of the module. Calls of MHLO from older versions
//! of JAX become the CHLO operations that newer versions write.

use super::super::lapack::{self, Call};
use super::*;
use crate::core::program::Aval;

/// The operations of CHLO.
pub(super) const CHLO: &[&str] =
    &["acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "erf", "erf_inv", "sinh", "top_k"];

impl<'a> Writer<'a> {
    /// Turns a call such as `mhlo.sinh` into the operation.
    fn replace_mhlo_call(&self, op: &mut Operation<'a>, name: &'a str) -> Result<()> {
        let name = if name == "topk" { "top_k" } else { name };
        if !CHLO.contains(&name) && name != "tan" {
            return Ok(());
        }
        let mut named = Vec::new();
        if let Some((_, attributes)) = op.attributes.iter().find(|(name, _)| *name == "mhlo.attributes")
            && let Attribute::Dictionary(entries) = self.dictionary.attribute(*attributes)?
        {
            for (name, value) in entries {
                match (self.dictionary.string(name)?, self.dictionary.attribute(value)?) {
                    ("k", Attribute::Int(_, k)) => named.push(("k", Attribute::Count(k))),
                    ("largest", Attribute::Int(_, 0) | Attribute::Bool(false)) => {
                        return Err(err!(
                            NotImplemented,
                            "the program selects the smallest elements, which shardax cannot read"
                        ));
                    }
                    _ => {}
                }
            }
        }
        (op.name, op.named) = (name, named);
        op.attributes.clear();
        Ok(())
    }

    /// Turns a call of LAPACK into a call of a function that is appended to the module; other calls stay.
    pub(super) fn routine(&mut self, op: &mut Operation<'a>) -> Result<()> {
        let &Attribute::Text(target) = self.dictionary.attribute_named(&op.named, "call_target_name")? else {
            return Ok(());
        };
        if let Some(name) = target.strip_prefix("mhlo.") {
            return self.replace_mhlo_call(op, name);
        }
        let Some(routine) = lapack::routine(target) else { return Ok(()) };
        if let Some(known) = match routine {
            "geqrf" => Some("Qr"),
            "orgqr" | "ungqr" => Some("ProductOfElementaryHouseholderReflectors"),
            _ => None,
        } {
            // XLA has these targets on every platform.
            op.named = vec![("call_target_name", Attribute::Text(known))];
            op.attributes.clear();
            return Ok(());
        }
        let call = Call {
            routine: routine.to_owned(),
            config: self.config(op)?,
            operands: self.avals(target, op.operands.iter().map(|value| value.of))?,
            results: self.avals(target, op.results.iter().copied())?,
        };
        let key = format!("{target} {:?} {:?}", call.config, call.operands);
        let (name, kept) = match self.routines.get(&key) {
            Some(known) => known.clone(),
            None => {
                let prefix = format!("{target}.{}.", self.routines.len());
                let (text, kept) = call.text(&prefix).map_err(|e| e.context(format!("{target} of the program")))?;
                self.dictionary.spend(text.len() / 256)?;
                self.routine_text.push_str(&text);
                self.routines.insert(key, (format!("{prefix}main"), kept.clone()));
                (format!("{prefix}main"), kept)
            }
        };
        op.operands = kept.iter().map(|&i| at(&op.operands, i).cloned()).collect::<Result<_>>()?;
        op.name = "call_v1";
        op.named = vec![("callee", Attribute::Function(name))];
        op.attributes.clear();
        Ok(())
    }

    /// The numbers in the configuration of a call.
    fn config(&self, op: &Operation<'a>) -> Result<Vec<(String, i64)>> {
        let property = op.named.iter().find(|(name, _)| *name == "backend_config").map(|(_, value)| value.clone());
        let attribute = op.attributes.iter().find(|(name, _)| *name == "mhlo.backend_config");
        let attribute = attribute.map(|(_, value)| self.dictionary.attribute(*value)).transpose()?;
        let mut numbers = Vec::new();
        for one in [attribute, property].into_iter().flatten() {
            let Attribute::Dictionary(entries) = one else { continue };
            for (name, value) in entries {
                if let Attribute::Int(_, value) = self.dictionary.attribute(value)? {
                    numbers.push((self.dictionary.string(name)?.to_owned(), value));
                }
            }
        }
        Ok(numbers)
    }

    fn avals(&self, target: &str, types: impl Iterator<Item = usize>) -> Result<Vec<Aval>> {
        types
            .map(|of| {
                let (shape, element) = self.dictionary.tensor_type(of)?;
                let element = self.dictionary.type_text(element)?;
                let dtype = lapack::dtype(&element);
                let dtype = dtype.ok_or_else(|| damaged(format!("its program calls {target} with {element}")))?;
                let sizes: Option<Vec<usize>> = shape.iter().map(|&size| usize::try_from(size).ok()).collect();
                let sizes = sizes.filter(|sizes| {
                    let bytes = sizes.iter().try_fold(dtype.byte_size(), |bytes, &size| bytes.checked_mul(size));
                    bytes.is_some_and(|bytes| isize::try_from(bytes).is_ok())
                });
                let sizes = sizes.ok_or_else(|| damaged(format!("its program calls {target} with {shape:?}")))?;
                Ok(Aval::new(dtype, sizes.as_slice()))
            })
            .collect()
    }
}
