"""Errors of servicers, each with the gRPC status code that an interceptor answers with (docs/design.md 11.6)."""

import grpc


class DomainError(Exception):
    """Base of the errors that a servicer may raise; `code` is what the caller sees."""

    code = grpc.StatusCode.INTERNAL


class StaleGeneration(DomainError):
    """The request names a generation that is over or was never made. The caller has to read the plan again before it retries."""

    code = grpc.StatusCode.ABORTED


class InvalidRequest(DomainError):
    """A field has an impossible value; the text names field and value."""

    code = grpc.StatusCode.INVALID_ARGUMENT


class TooLarge(DomainError):
    """A request is larger than its method accepts."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class Refused(DomainError):
    """The request is well formed, but the present state forbids it; the text says why and what to do."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class NotLeading(DomainError):
    """This controller does not lead; another one may. Retried."""

    code = grpc.StatusCode.UNAVAILABLE


class Unavailable(DomainError):
    """Something that the answer needs is unavailable for the moment. Retried."""

    code = grpc.StatusCode.UNAVAILABLE


class Unauthenticated(DomainError):
    """The call carries no known token; another token is needed."""

    code = grpc.StatusCode.UNAUTHENTICATED


class PermissionDenied(DomainError):
    """The token's role may not call this method."""

    code = grpc.StatusCode.PERMISSION_DENIED
