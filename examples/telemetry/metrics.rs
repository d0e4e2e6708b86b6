//! The numbers of a run as a page for Prometheus.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;

use prometheus::{Encoder, Gauge, Registry, TextEncoder};
use shardax::{Error, ErrorKind, Result};
use shardax_train::log::Logger;
use tiny_http::{Header, Response, Server};

/// A page of the numbers of a run, served on a thread until it is dropped.
pub struct Page {
    registry: Registry,
    server: Arc<Server>,
}

impl Page {
    /// Serves the page at this address; port 0 is any free one.
    pub fn serve(address: &str) -> Result<Self> {
        let server = Server::http(address).map_err(|error| failed(format!("cannot serve at {address}: {error}")))?;
        let page = Page { registry: Registry::new(), server: Arc::new(server) };
        let (requests, registry) = (page.server.clone(), page.registry.clone());
        thread::spawn(move || {
            for request in requests.incoming_requests() {
                // A client that went away is not a failure of the run.
                let _ = match request.url() {
                    "/metrics" => request.respond(rendered(&registry)),
                    _ => request.respond(Response::from_string("see /metrics\n").with_status_code(404).boxed()),
                };
            }
        });
        Ok(page)
    }

    /// The address of the page.
    pub fn address(&self) -> Option<SocketAddr> {
        self.server.server_addr().to_ip()
    }

    /// The logger that writes the page.
    pub fn gauges(&self) -> Gauges {
        Gauges { registry: self.registry.clone(), gauges: BTreeMap::new() }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        self.server.unblock();
    }
}

/// A logger with a gauge for each number: `loss` is `train_loss`, `time/input_wait` is `train_time_input_wait`.
pub struct Gauges {
    registry: Registry,
    gauges: BTreeMap<String, Gauge>,
}

impl Gauges {
    fn set(&mut self, name: &str, value: f64) -> Result<()> {
        if !self.gauges.contains_key(name) {
            let metric = format!("train_{}", name.replace(|c: char| !c.is_ascii_alphanumeric(), "_"));
            let gauge = Gauge::new(metric, format!("{name} of the last logged step")).map_err(failed)?;
            self.registry.register(Box::new(gauge.clone())).map_err(failed)?;
            self.gauges.insert(name.to_owned(), gauge);
        }
        self.gauges[name].set(value);
        Ok(())
    }
}

impl Logger for Gauges {
    fn begin(&mut self, step: u64) -> Result<()> {
        self.set("step", step as f64)
    }

    fn log(&mut self, step: u64, values: &BTreeMap<String, f64>) -> Result<()> {
        self.set("step", step as f64)?;
        values.iter().try_for_each(|(name, value)| self.set(name, *value))
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

fn rendered(registry: &Registry) -> tiny_http::ResponseBox {
    let (encoder, mut page) = (TextEncoder::new(), Vec::new());
    match encoder.encode(&registry.gather(), &mut page) {
        Ok(()) => {
            let kind = Header::from_bytes("Content-Type", encoder.format_type());
            kind.into_iter().fold(Response::from_data(page), Response::with_header).boxed()
        }
        Err(error) => Response::from_string(error.to_string()).with_status_code(500).boxed(),
    }
}

fn failed(error: impl ToString) -> Error {
    Error::new(ErrorKind::Runtime, error.to_string())
}
