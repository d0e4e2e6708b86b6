//! Spans of a run for a collector of OpenTelemetry.

use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use shardax::{Error, ErrorKind, Result};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Sends the spans of this process until it is dropped, to `OTEL_EXPORTER_OTLP_ENDPOINT` or http://localhost:4318.
pub struct Spans(SdkTracerProvider);

impl Spans {
    /// Makes the collector the subscriber of this process.
    pub fn export() -> Result<Self> {
        let exporter = SpanExporter::builder().with_http().build().map_err(failed)?;
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_resource(Resource::builder().with_service_name("shardax-telemetry").build())
            .build();
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("shardax"));
        tracing_subscriber::registry().with(layer).try_init().map_err(failed)?;
        Ok(Spans(provider))
    }
}

impl Drop for Spans {
    fn drop(&mut self) {
        if let Err(error) = self.0.shutdown() {
            eprintln!("the last spans were not sent: {error}");
        }
    }
}

fn failed(error: impl ToString) -> Error {
    Error::new(ErrorKind::Runtime, error.to_string())
}
