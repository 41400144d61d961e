"""BERT: text classification (regression with one label) and extractive question answering."""

from torch import Tensor, nn
from transformers import BertConfig, BertForQuestionAnswering, BertForSequenceClassification, PreTrainedModel

from frostline_trainer.data.sizes import DataSizes
from frostline_trainer.families.base import CutModel, Unit, assemble, attention_block_flops, first_tensor
from frostline_trainer.families.configuring import SizeFitter
from frostline_trainer.families.hugging_face import HuggingFaceFamily, fit_text
from frostline_trainer.families.masks import bidirectional_mask
from frostline_trainer.tensor.table import TensorTable


class Embedding(Unit):
    """input_ids and, if given, token_type_ids (samples, tokens) to (samples, tokens, width)."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.embeddings = model.bert.embeddings

    def forward(self, x: Tensor | None, inputs: dict[str, Tensor]) -> Tensor:
        return self.embeddings(input_ids=inputs["input_ids"], token_type_ids=inputs.get("token_type_ids"))


class Block(Unit):
    """One encoder layer with the padding mask built from inputs["attention_mask"]."""

    def __init__(self, layer: nn.Module, attention: str) -> None:
        super().__init__()
        self.layer = layer
        self.attention = attention

    def forward(self, x: Tensor | None, inputs: dict[str, Tensor]) -> Tensor:
        mask = bidirectional_mask(x, inputs.get("attention_mask"), self.attention)
        return first_tensor(self.layer(x, attention_mask=mask))


class ClassificationHead(Unit):
    """Pooler, dropout and classifier on the first token: logits (samples, labels)."""

    def __init__(self, model: BertForSequenceClassification) -> None:
        super().__init__()
        self.pooler = model.bert.pooler
        self.dropout = model.dropout
        self.classifier = model.classifier

    def forward(self, x: Tensor | None, inputs: dict[str, Tensor]) -> Tensor:
        return self.classifier(self.dropout(self.pooler(x)))


class QuestionAnsweringHead(Unit):
    """Logits (samples, tokens, 2): start and end of the answer."""

    def __init__(self, model: BertForQuestionAnswering) -> None:
        super().__init__()
        self.qa_outputs = model.qa_outputs

    def forward(self, x: Tensor | None, inputs: dict[str, Tensor]) -> Tensor:
        return self.qa_outputs(x)


class Bert(HuggingFaceFamily):
    """BERT with a classification or a question-answering head; head or pooler are initialised if a checkpoint lacks them."""

    name = "bert"
    config_class = BertConfig
    padding_blind = True
    model_classes = {  # noqa: RUF012
        "text_classification": BertForSequenceClassification,
        "question_answering": BertForQuestionAnswering,
    }
    fresh = ("classifier.", "qa_outputs.", "bert.pooler.")

    def fit(self, fitter: SizeFitter, sizes: DataSizes) -> None:
        fit_text(fitter, sizes)

    def cut(self, model: PreTrainedModel, task_kind: str) -> CutModel:
        """Units: the embeddings, one encoder layer each, and the task's head."""
        self.check_task(task_kind)
        attention = model.config._attn_implementation
        blocks = [Block(layer, attention) for layer in model.bert.encoder.layer]
        head = QuestionAnsweringHead(model) if task_kind == "question_answering" else ClassificationHead(model)
        return assemble(model, Embedding(model), blocks, head)

    def tensor_table(self, config: BertConfig) -> TensorTable:
        """The linear layers of a block that tensor tiles cut; see Family."""
        attention = ("self.query", "self.key", "self.value")
        return TensorTable(
            columns=(*attention, "intermediate.dense"),
            rows=("attention.output.dense", "layer.output.dense"),
            together=(attention,),
            embedding="word_embeddings",
        )

    def hidden_shape(self, config: BertConfig, sizes: DataSizes) -> tuple[int, int]:
        """(sequence length, hidden_size) of one sample."""
        return sizes.sequence_length, config.hidden_size

    def forward_flops(self, config: BertConfig, sizes: DataSizes, task_kind: str) -> tuple[int, ...]:
        """FLOPs of one sample in each unit: matrix products only, two FLOPs a multiply-add."""
        tokens, width = self.hidden_shape(config, sizes)
        block = attention_block_flops(tokens, width, width, width, config.intermediate_size)
        if task_kind == "question_answering":
            head = 2 * tokens * width * config.num_labels
        else:
            head = 2 * width * width + 2 * width * config.num_labels
        return (0, *[block] * config.num_hidden_layers, head)
