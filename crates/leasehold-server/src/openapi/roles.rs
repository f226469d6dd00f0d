//! Required role of each operation in the `OpenAPI` document, taken from the [`Caller`] among the
//! arguments of its handler.

use utoipa::openapi::path::{Operation, PathItem, Paths};
use utoipa::openapi::security::SecurityRequirement;

use crate::access::{Caller, RequiredRole, Role};
use crate::server::App;

/// Name of the security scheme under which an operation lists its role.
pub(crate) const SCHEME: &str = "token";

/// Handler that requires a role. `Args` are the types of its arguments.
pub(crate) trait Guarded<Args> {
    const ROLE: Role;
}

macro_rules! guarded {
    ($($($arg:ident)*;)*) => {$(
        impl<F, Output, R, $($arg),*> Guarded<(App, Caller<R>, $($arg,)*)> for F
        where
            F: Fn(App, Caller<R>, $($arg),*) -> Output,
            R: RequiredRole,
        {
            const ROLE: Role = R::ROLE;
        }
    )*};
}
guarded! { ; A; A B; A B C; A B C D; A B C D E; }

pub(crate) fn required_role<Args, H: Guarded<Args>>(_: &H) -> Role {
    H::ROLE
}

/// Registers handlers as routes, each described with its required role. For a handler without a
/// [`Caller`] among its arguments the role is given explicitly, or `None` if no token is needed:
/// `routes!(None => healthz)`.
macro_rules! routes {
    ($($handler:ident),+ $(,)?) => {
        $crate::openapi::roles::routes!(@ $($handler = Some($crate::openapi::roles::required_role(&$handler))),+)
    };
    ($role:expr => $($handler:ident),+ $(,)?) => {
        $crate::openapi::roles::routes!(@ $($handler = $role),+)
    };
    (@ $($handler:ident = $role:expr),+) => {{
        let (schemas, mut paths, methods) = ::utoipa_axum::routes!($($handler),+);
        $(
            let own: ::utoipa_axum::router::UtoipaMethodRouter<$crate::server::App> =
                ::utoipa_axum::routes!($handler);
            $crate::openapi::roles::describe(&mut paths, own.1, $role);
        )+
        (schemas, paths, methods)
    }};
}
pub(crate) use routes;

/// Writes the role of one handler into the description of all handlers of its path.
pub(crate) fn describe(paths: &mut Paths, own: Paths, role: Option<Role>) {
    for (path, mut item) in own.paths {
        let Some(all) = paths.paths.get_mut(&path) else { continue };
        for (operation, mine) in operations(all).into_iter().zip(operations(&mut item)) {
            if let (Some(operation), Some(_)) = (operation, mine) {
                set_role(operation, role);
            }
        }
    }
}

fn set_role(operation: &mut Operation, role: Option<Role>) {
    match role {
        Some(role) => operation.security = Some(vec![SecurityRequirement::new(SCHEME, [role.to_string()])]),
        None if operation.security.is_none() => {
            operation.security = Some(vec![SecurityRequirement::default()]);
        }
        None => {}
    }
}

/// Returns the operations of a path in a fixed order.
pub(crate) fn operations(item: &mut PathItem) -> [&mut Option<Operation>; 5] {
    [&mut item.get, &mut item.put, &mut item.post, &mut item.delete, &mut item.patch]
}

/// Adds the alternative that a request has no token.
pub(crate) fn allow_without_token(operation: &mut Operation) {
    if !is_public(operation) {
        operation.security.get_or_insert_default().push(SecurityRequirement::default());
    }
}

pub(crate) fn is_public(operation: &Operation) -> bool {
    let is_none = |requirement: &SecurityRequirement| *requirement == SecurityRequirement::default();
    operation.security.as_ref().is_some_and(|requirements| requirements.iter().all(is_none))
}
