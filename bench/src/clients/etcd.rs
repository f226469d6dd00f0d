//! etcd's lock over gRPC: `Lock` waits in a queue of the server, `Unlock` releases. As in its documentation,
//! the lease is created before; each client has its own connection. The messages are defined here, so that
//! the build needs no protobuf compiler.

use std::time::Duration;

use anyhow::{Context, Result};
use prost::Message;
use tonic::Request;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use super::Client;

const TTL_SECONDS: i64 = 30;
/// Timeout of a request, which includes the wait for a contended lock.
const TIMEOUT: Duration = Duration::from_mins(1);

pub(crate) fn address() -> Result<String> {
    let variable = "LEASEHOLD_BENCH_ETCD";
    std::env::var(variable).with_context(|| format!("{variable} is not set"))
}

/// Client with its own connection and lease.
pub(crate) struct Etcd {
    grpc: Grpc<Channel>,
    name: Vec<u8>,
    lease: i64,
    /// Key of the held lock.
    key: Vec<u8>,
}

impl Etcd {
    pub(crate) async fn open(url: &str, name: String) -> Result<Self> {
        let channel = Endpoint::from_shared(url.to_owned())?.timeout(TIMEOUT).connect().await;
        let mut grpc = Grpc::new(channel.context("etcd cannot be reached")?);
        let granted: LeaseGrantResponse =
            call(&mut grpc, "/etcdserverpb.Lease/LeaseGrant", LeaseGrantRequest { ttl: TTL_SECONDS }).await?;
        Ok(Self { grpc, name: name.into_bytes(), lease: granted.id, key: Vec::new() })
    }
}

impl Client for Etcd {
    async fn acquire(&mut self) -> Result<u64> {
        let request = LockRequest { name: self.name.clone(), lease: self.lease };
        let locked: LockResponse = call(&mut self.grpc, "/v3lockpb.Lock/Lock", request).await?;
        self.key = locked.key;
        // Fencing token according to etcd's documentation: the revision at which the lock was held.
        Ok(locked.header.map_or(0, |header| header.revision.unsigned_abs()))
    }

    async fn release(&mut self) -> Result<()> {
        let request = UnlockRequest { key: std::mem::take(&mut self.key) };
        call(&mut self.grpc, "/v3lockpb.Lock/Unlock", request).await
    }
}

async fn call<Q, A>(grpc: &mut Grpc<Channel>, path: &'static str, request: Q) -> Result<A>
where
    Q: Message + 'static,
    A: Message + Default + 'static,
{
    grpc.ready().await?;
    let codec = ProstCodec::<Q, A>::default();
    Ok(grpc.unary(Request::new(request), PathAndQuery::from_static(path), codec).await?.into_inner())
}

#[derive(Clone, PartialEq, Message)]
struct Header {
    #[prost(int64, tag = "3")]
    revision: i64,
}

#[derive(Clone, PartialEq, Message)]
struct LeaseGrantRequest {
    #[prost(int64, tag = "1")]
    ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
struct LeaseGrantResponse {
    #[prost(int64, tag = "2")]
    id: i64,
}

#[derive(Clone, PartialEq, Message)]
struct LockRequest {
    #[prost(bytes = "vec", tag = "1")]
    name: Vec<u8>,
    #[prost(int64, tag = "2")]
    lease: i64,
}

#[derive(Clone, PartialEq, Message)]
struct LockResponse {
    #[prost(message, optional, tag = "1")]
    header: Option<Header>,
    #[prost(bytes = "vec", tag = "2")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct UnlockRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
}
