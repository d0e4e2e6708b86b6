//! Dtypes in safetensors files.

use safetensors::tensor::Dtype;

use super::DType;

impl DType {
    /// The element type in a safetensors file, and the number of those that make an element. Complex numbers are pairs,
    /// since few readers know them, and so are random keys; what the format has no name for is stored as bytes.
    #[doc(hidden)]
    pub fn stored(self) -> (Dtype, usize) {
        match self {
            DType::Bool | DType::Float0 => (Dtype::BOOL, 1),
            DType::I8 | DType::I4 | DType::I2 => (Dtype::I8, 1),
            DType::I16 => (Dtype::I16, 1),
            DType::I32 => (Dtype::I32, 1),
            DType::I64 => (Dtype::I64, 1),
            DType::U16 => (Dtype::U16, 1),
            DType::U32 => (Dtype::U32, 1),
            DType::U64 => (Dtype::U64, 1),
            DType::F16 => (Dtype::F16, 1),
            DType::Bf16 => (Dtype::BF16, 1),
            DType::F32 => (Dtype::F32, 1),
            DType::F64 => (Dtype::F64, 1),
            // The words of a key, as `random::key_data` gives them.
            DType::Key => (Dtype::U32, 2),
            DType::Complex64 => (Dtype::F32, 2),
            DType::Complex128 => (Dtype::F64, 2),
            DType::F8E4M3Fn => (Dtype::F8_E4M3, 1),
            DType::F8E5M2 => (Dtype::F8_E5M2, 1),
            DType::F8E8M0Fnu => (Dtype::F8_E8M0, 1),
            // The format's own float4 shares bytes between elements.
            DType::U8
            | DType::U4
            | DType::U2
            | DType::F8E3M4
            | DType::F8E4M3
            | DType::F8E4M3Fnuz
            | DType::F8E4M3B11Fnuz
            | DType::F8E5M2Fnuz
            | DType::F4E2M1Fn => (Dtype::U8, 1),
        }
    }

    /// The dtype of this name, as `float32`, in a file.
    #[doc(hidden)]
    pub fn of_name(name: &str) -> Option<DType> {
        DType::ALL.into_iter().chain([DType::Float0, DType::Key]).find(|dtype| dtype.to_string() == name)
    }

    /// The dtype that such an element type names.
    #[doc(hidden)]
    pub fn of_stored(ty: Dtype) -> Option<DType> {
        DType::ALL.into_iter().find(|dtype| dtype.stored() == (ty, 1))
    }
}
