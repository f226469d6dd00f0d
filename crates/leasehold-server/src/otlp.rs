//! Exports traces to an OpenTelemetry collector, over OTLP as protobuf on HTTP. Only plain HTTP is
//! supported, because the collector is expected on the same host or network.
//!
//! Every request and every store call is a span. The exporter has its own thread; an unreachable or
//! slow collector causes lost spans but never delays a request.

use std::error::Error;

use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::Subscriber;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::registry::LookupSpan;

const PATH: &str = "/v1/traces";

/// Sends spans to a collector.
#[derive(Debug)]
pub struct Exporter {
    provider: SdkTracerProvider,
}

impl Exporter {
    /// Creates an exporter for the collector at this address, such as `http://127.0.0.1:4318`.
    pub fn new(collector: &str) -> Result<Self, Box<dyn Error + Send + Sync>> {
        if !collector.starts_with("http://") {
            return Err("invalid address of the collector: must be http://HOST:PORT".into());
        }
        // The exporter's HTTP client requires a crypto provider, even for plain HTTP, if any part
        // of this program is built with TLS.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let address = collector.trim_end_matches('/');
        let address = if address.ends_with(PATH) { address.to_owned() } else { format!("{address}{PATH}") };
        let exporter = SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(address)
            .build()?;
        let resource = Resource::builder().with_service_name("leasehold").build();
        let provider =
            SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build();
        Ok(Self { provider })
    }

    /// Returns the layer for a subscriber. The layer passes only leasehold's own spans: exporting
    /// the spans of the exporter's HTTP client would produce further spans.
    pub fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        let ours = Targets::new()
            .with_target("leasehold", tracing::Level::DEBUG)
            .with_target("leasehold_server", tracing::Level::DEBUG);
        tracing_opentelemetry::layer().with_tracer(self.provider.tracer("leasehold")).with_filter(ours)
    }

    /// Sends the remaining spans and shuts down. Blocks, so it must not be called on a thread that
    /// runs futures.
    pub fn finish(self) {
        if let Err(error) = self.provider.shutdown() {
            tracing::warn!(%error, "failed to send the last spans");
        }
    }
}
