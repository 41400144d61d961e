"""Domain errors and the status code that each becomes, in one interceptor (docs/design.md 11.6)."""

import grpc


class DomainError(Exception):
    """Base of the errors that a servicer may raise; `code` is what the caller sees."""

    code = grpc.StatusCode.INTERNAL


class StaleGeneration(DomainError):
    """The caller speaks for a generation that is over, or one that was never made: read again, do not retry as is."""

    code = grpc.StatusCode.ABORTED


class InvalidRequest(DomainError):
    """A field's value cannot be; the text names field and value."""

    code = grpc.StatusCode.INVALID_ARGUMENT


class TooLarge(DomainError):
    """A request is larger than its method takes."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class Refused(DomainError):
    """The request is well formed and the state forbids it; the text says why and what to do."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class NotLeading(DomainError):
    """This controller does not lead; another one may. Retried."""

    code = grpc.StatusCode.UNAVAILABLE


class Unavailable(DomainError):
    """What is needed to answer is away for the moment. Retried."""

    code = grpc.StatusCode.UNAVAILABLE


class Unauthenticated(DomainError):
    """The call carries no token that is known; another token is needed."""

    code = grpc.StatusCode.UNAUTHENTICATED


class PermissionDenied(DomainError):
    """The token's role may not call this method."""

    code = grpc.StatusCode.PERMISSION_DENIED
