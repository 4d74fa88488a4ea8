"""TensorRT's enumerations; where a member names an op, its value is ingot's word for it."""

from __future__ import annotations

from enum import Enum, IntEnum, IntFlag

from ingot.compat.tensor import TensorLocation, Word


class ElementWiseOperation(Word):
    SUM = "add"
    PROD = "mul"
    MAX = "maximum"
    MIN = "minimum"
    SUB = "sub"
    DIV = "div"
    POW = "pow"
    FLOOR_DIV = "floordiv"
    AND = "logical_and"
    OR = "logical_or"
    XOR = "logical_xor"
    EQUAL = "equal"
    GREATER = "greater"
    LESS = "less"


class UnaryOperation(Word):
    EXP = "exp"
    LOG = "log"
    SQRT = "sqrt"
    RECIP = "reciprocal"
    ABS = "abs"
    NEG = "neg"
    SIN = "sin"
    COS = "cos"
    CEIL = "ceil"
    FLOOR = "floor"
    ERF = "erf"
    NOT = "logical_not"
    ROUND = "round"
    TAN = "tan"
    SINH = "sinh"
    COSH = "cosh"
    ASIN = "asin"
    ACOS = "acos"
    ATAN = "atan"
    ASINH = "asinh"
    ACOSH = "acosh"
    ATANH = "atanh"
    SIGN = "sign"
    ISINF = "isinf"
    ISNAN = "isnan"


class ActivationType(Word):
    RELU = "relu"
    SIGMOID = "sigmoid"
    TANH = "tanh"
    LEAKY_RELU = "leaky_relu"
    ELU = "elu"
    SELU = "selu"
    SOFTSIGN = "softsign"
    SOFTPLUS = "softplus"
    CLIP = "clip"
    HARD_SIGMOID = "hard_sigmoid"
    SCALED_TANH = "scaled_tanh"
    THRESHOLDED_RELU = "thresholded_relu"
    GELU_ERF = "gelu_erf"
    GELU_TANH = "gelu"


class ReduceOperation(Word):
    SUM = "sum"
    PROD = "prod"
    MAX = "max"
    MIN = "min"
    AVG = "mean"


class PoolingType(Word):
    MAX = "max_pool"
    AVERAGE = "avg_pool"
    MAX_AVERAGE_BLEND = "max_average_blend"


class PaddingMode(Word):
    EXPLICIT_ROUND_DOWN = "explicit_round_down"
    EXPLICIT_ROUND_UP = "explicit_round_up"
    SAME_UPPER = "same_upper"
    SAME_LOWER = "same_lower"


class InterpolationMode(Word):
    NEAREST = "nearest"
    LINEAR = "linear"
    CUBIC = "bicubic"


class MatrixOperation(Enum):
    NONE = 0
    TRANSPOSE = 1
    VECTOR = 2


class TopKOperation(Enum):
    MAX = 0
    MIN = 1


class GatherMode(Enum):
    DEFAULT = 0
    ELEMENT = 1
    ND = 2


class ScatterMode(Enum):
    ELEMENT = 0
    ND = 1


class FillOperation(Enum):
    LINSPACE = 0
    RANDOM_UNIFORM = 1
    RANDOM_NORMAL = 2


class SampleMode(Enum):
    STRICT_BOUNDS = 0
    WRAP = 1
    CLAMP = 2
    FILL = 3
    REFLECT = 4


class ResizeCoordinateTransformation(Enum):
    ALIGN_CORNERS = 0
    ASYMMETRIC = 1
    HALF_PIXEL = 2


class ResizeRoundMode(Enum):
    HALF_UP = 0
    HALF_DOWN = 1
    FLOOR = 2
    CEIL = 3


class ResizeSelector(Enum):
    FORMULA = 0
    UPPER = 1


class CumulativeOperation(Word):
    SUM = "sum"


class BoundingBoxFormat(Enum):
    CORNER_PAIRS = 0
    CENTER_SIZES = 1


class AttentionNormalizationOp(Enum):
    NONE = 0
    SOFTMAX = 1


class ScaleMode(Enum):
    UNIFORM = 0
    CHANNEL = 1
    ELEMENTWISE = 2


class LoopOutput(Enum):
    LAST_VALUE = 0
    CONCATENATE = 1
    REVERSE = 2


class TripLimit(Enum):
    COUNT = 0
    WHILE = 1


class LayerType(Enum):
    CONVOLUTION = 0
    CAST = 1
    ACTIVATION = 2
    POOLING = 3
    LRN = 4
    SCALE = 5
    SOFTMAX = 6
    DECONVOLUTION = 7
    CONCATENATION = 8
    ELEMENTWISE = 9
    PLUGIN = 10
    UNARY = 11
    PADDING = 12
    SHUFFLE = 13
    REDUCE = 14
    TOPK = 15
    GATHER = 16
    MATRIX_MULTIPLY = 17
    RAGGED_SOFTMAX = 18
    CONSTANT = 19
    IDENTITY = 20
    PLUGIN_V2 = 21
    SLICE = 22
    SHAPE = 23
    PARAMETRIC_RELU = 24
    RESIZE = 25
    TRIP_LIMIT = 26
    RECURRENCE = 27
    ITERATOR = 28
    LOOP_OUTPUT = 29
    SELECT = 30
    FILL = 31
    QUANTIZE = 32
    DEQUANTIZE = 33
    CONDITION = 34
    CONDITIONAL_INPUT = 35
    CONDITIONAL_OUTPUT = 36
    SCATTER = 37
    EINSUM = 38
    ASSERTION = 39
    ONE_HOT = 40
    NON_ZERO = 41
    GRID_SAMPLE = 42
    NMS = 43
    REVERSE_SEQUENCE = 44
    NORMALIZATION = 45
    PLUGIN_V3 = 46
    SQUEEZE = 47
    UNSQUEEZE = 48
    CUMULATIVE = 49
    DYNAMIC_QUANTIZE = 50
    ATTENTION_INPUT = 51
    ATTENTION_OUTPUT = 52


class TensorFormat(Enum):
    LINEAR = 0


class ExecutionContextAllocationStrategy(Enum):
    STATIC = 0
    ON_PROFILE_CHANGE = 1
    USER_MANAGED = 2


class LayerInformationFormat(Enum):
    ONELINE = 0
    JSON = 1


class OptProfileSelector(Enum):
    MIN = 0
    OPT = 1
    MAX = 2


class TensorIOMode(Enum):
    NONE = 0
    INPUT = 1
    OUTPUT = 2


class MemoryPoolType(Enum):
    WORKSPACE = 0
    DLA_MANAGED_SRAM = 1
    DLA_LOCAL_DRAM = 2
    DLA_GLOBAL_DRAM = 3
    TACTIC_DRAM = 4
    TACTIC_SHARED_MEMORY = 5


class ProfilingVerbosity(Enum):
    LAYER_NAMES_ONLY = 0
    NONE = 1
    DETAILED = 2


class BuilderFlag(Enum):
    FP16 = 0
    BF16 = 1
    INT8 = 2
    FP8 = 3
    INT4 = 4
    TF32 = 5
    DEBUG = 6
    REFIT = 7
    STRIP_PLAN = 8
    WEIGHT_STREAMING = 9
    OBEY_PRECISION_CONSTRAINTS = 10
    PREFER_PRECISION_CONSTRAINTS = 11
    DISABLE_TIMING_CACHE = 12
    SPARSE_WEIGHTS = 13
    GPU_FALLBACK = 14
    REJECT_EMPTY_ALGORITHMS = 15
    DIRECT_IO = 16
    VERSION_COMPATIBLE = 17
    SAFETY_SCOPE = 18


class NetworkDefinitionCreationFlag(IntEnum):
    EXPLICIT_BATCH = 0
    STRONGLY_TYPED = 1


class Severity(IntEnum):
    INTERNAL_ERROR = 0
    ERROR = 1
    WARNING = 2
    INFO = 3
    VERBOSE = 4


class EngineCapability(Enum):
    STANDARD = 0
    SAFETY = 1
    DLA_STANDALONE = 2


class PreviewFeature(IntFlag):
    PROFILE_SHARING_0806 = 1
    ALIASED_PLUGIN_IO_10_03 = 2


class HardwareCompatibilityLevel(Enum):
    NONE = 0
    AMPERE_PLUS = 1


ENUMS = {
    cls.__name__: cls
    for cls in (
        ElementWiseOperation, UnaryOperation, ActivationType, ReduceOperation, PoolingType, PaddingMode,
        InterpolationMode, MatrixOperation, TopKOperation, GatherMode, ScatterMode, FillOperation, SampleMode,
        ResizeCoordinateTransformation, ResizeRoundMode, ScaleMode, LoopOutput, TripLimit, TensorFormat, TensorIOMode,
        MemoryPoolType, ProfilingVerbosity, BuilderFlag, NetworkDefinitionCreationFlag, EngineCapability,
        PreviewFeature, HardwareCompatibilityLevel, TensorLocation, ResizeRoundMode, ResizeSelector,
        CumulativeOperation, BoundingBoxFormat, AttentionNormalizationOp, LayerType, LayerInformationFormat,
        ExecutionContextAllocationStrategy,
    )
} | {"SliceMode": SampleMode, "ResizeMode": InterpolationMode, "OptProfileSelector": OptProfileSelector}  # fmt: skip
