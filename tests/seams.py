"""What of mimokit and of Megatron tests replace, each once: a move in the product is one line here.

A seam is the full name of a function, method or constant, for `planted` and `monkeypatch`. Prefer
one that is here: a public function before a private one, and one that several faults share.
"""

# Routes between modules, in every mode.
GATHER_ROWS = "mimokit.engine.bridges.routes.gather_in_place"
ROWS_KEPT = "mimokit.engine.bridges.routes._KeptMessage.rows"
SEND_ROWS = "mimokit.engine.bridges.routes.RouteCommunicator.send"
SLICE_TEXT = "mimokit.engine.pipeline.loaded_batch.slice_text"

# Stages, and messages between them.
SEND = "mimokit.engine.pipeline.communicator.MultiModulePipelineCommunicator.send"
TAKE = "mimokit.engine.pipeline.microbatches.PipelineStageMultimodality.take"
NUMBER_SAMPLES = "mimokit.engine.pipeline.model.RankModel.number_samples"
STAGE_FORWARD = "mimokit.engine.pipeline.base_stage.ModuleStage.forward"
RUN_BACKWARD = "mimokit.engine.pipeline.microbatches.PipelineStageMultimodality.backward_one_chunk"
CAUSAL_MASK = "mimokit.engine.pipeline.packing.causal_mask"
ENCODER_INPUTS = "mimokit.engine.pipeline.encoder_stages.EncoderStage._inputs"
FURTHER_LOSS = "mimokit.engine.pipeline.encoder_stages.ImageDecoderStage.further_loss"
ALIKE_ON_CONTEXTS = "mimokit.engine.pipeline.encoder_stages.alike_on_contexts"
FOR_ALL_RANKS = "mimokit.engine.pipeline.language_stages.for_all_ranks"
LENGTHS_OF_STAGE = "mimokit.engine.pipeline.base_stage.random_state_of"
SAMPLE_LENGTHS = "mimokit.engine.pipeline.language_stages.sample_lengths"
ONE_FURTHER = "mimokit.engine.pipeline.language_stages.one_further"
CROSS_ENTROPY = "mimokit.engine.pipeline.language_stages.vocab_parallel_cross_entropy"

# Models.
ATTENTION = "mimokit.engine.models.attention.SequenceAttention.forward"
SPANS_OF_RANK = "mimokit.engine.models.attention.spans_of_rank"
DROPOUT_ROWS = "mimokit.engine.models.dropout._Site._rows"
ROUTING = "mimokit.engine.models.experts.LayoutFreeRouter.routing"
HAVE_ROOM = "mimokit.engine.models.experts.LayoutFreeRouter._have_room"
BUILD_EXPERTS = "mimokit.engine.models.experts.SeededExperts.__init__"
IMAGES_ENCODED = "mimokit.engine.models.frame_parallel._images_encoded"
KEY_BIAS = "mimokit.engine.models.key_bias.LinearWithoutKeyBias.forward"
WITHOUT_PADDING = "mimokit.engine.models.language.TiedGPTModel._without_padding"
SYNC_TIED_EMBEDDINGS = "mimokit.engine.models.language.TiedGPTModel.sync_tied_embeddings"
SHARE_KEY = "mimokit.engine.models.self_attention.LatentSelfAttention._share_key"
FREEZE = "mimokit.engine.models.provider.ModelProvider._freeze"
MODULE_SEED = "mimokit.engine.models.provider.module_seed"
SET_RANDOM_STATES = "mimokit.engine.models.rng.ModuleRngTracker.set_states"
CPU_ONLY = "mimokit.engine.megatron.available_kernels.CPU_ONLY"
COMPILES = "mimokit.engine.megatron.available_kernels._compiles"
BIAS_GELU = "megatron.core.transformer.mlp.bias_gelu_impl"
BIAS_SWIGLU = "megatron.core.transformer.mlp.bias_swiglu_impl"
WEIGHTED_SWIGLU = "megatron.core.transformer.mlp.weighted_bias_swiglu_impl"
LAYER = "mimokit.engine.models.transformer.SeededTransformerLayer.forward"
FINISH_IMAGES = "mimokit.engine.models.vision.VisionTransformer.finish"
FP8_SCALES = "mimokit.engine.megatron.fp8_linear.scales"
ADD_WEIGHT_PRODUCT = "mimokit.engine.megatron.weight_products._Product.add"

# Data and samples.
RECONSTRUCTION_TARGETS = "mimokit.engine.data.reconstruction.Reconstruction.targets"
ORDER_SAMPLES = "mimokit.engine.data.iterators.order_samples"
OWN_ORDER_OF_FRAMES = "mimokit.engine.frames.dispatch._in_own_order"

# Gradients, updates and what ranks share.
ALL_SLICES = "mimokit.engine.parallel.context.all_slices"
SLICE_OF_RANK = "mimokit.engine.parallel.context.slice_of_rank"
SUM_OF_SLICES = "mimokit.engine.parallel.data_parallel.ModuleDataParallel.sum_gradients_of_slices"
DDP_CONFIG = "mimokit.engine.parallel.data_parallel.data_parallel_config"
NO_SYNC = "mimokit.engine.parallel.data_parallel.DistributedDataParallel.no_sync"
OWNS = "mimokit.engine.parallel.data_parallel.Ownership.owns"
WRITES = "mimokit.engine.parallel.data_parallel.Ownership.writes"
SCALE_SHARDS = "mimokit.engine.parallel.full_shards.ShardedLayers.scale"
ROW_PARAMS = "mimokit.engine.parallel.row.SampleRow.params"
FINALIZE_GRADS = "mimokit.engine.parallel.update.finalize_model_grads"
FINALIZE_GRADS_OF_SEAMS = "mimokit.engine.verify.seams.code.finalize_model_grads"
REDUCED_GRADIENT = "mimokit.engine.parallel.update.reduced_gradient"
GO_ON = "mimokit.engine.parallel.update.MainGradUpdate.go_on"
STEP_GROUPS = "mimokit.engine.parallel.optimizer.MainGradOptimizer._step_groups"
ROUND_MAIN_WEIGHTS = "mimokit.engine.parallel.optimizer.MainGradOptimizer.round_main_weights"

# Strategies between replicas.
GRADIENTS = "mimokit.extras.strategies.replicas.update.ReplicaUpdate.gradients"
OUTER_WEIGHTS = "mimokit.extras.strategies.nodes.diloco.OuterWeights.write"
BEGIN_EXCHANGE = "mimokit.extras.strategies.nodes.diloco.DiLoCoCommunicator.begin"
KEEP_EXCHANGE = "mimokit.extras.strategies.nodes.diloco.DiLoCoCommunicator.keep"
EXCHANGE_NUMBER = "mimokit.extras.strategies.exchanges.rules.Rule.number"
MASK_INDICES = "mimokit.extras.strategies.exchanges.masks.Masks.indices"

# Runs and checkpoints.
UPDATE_OF_RUN = "mimokit.engine.training.optimizer_step.update_of_run"
ITERATE_BATCHES = "mimokit.engine.training.optimizer_step.iterate_batches"
HEALTH_SAMPLE = "mimokit.engine.training.loop.health_sample"
BEGIN_MARKS = "mimokit.engine.training.monitor.begin_marks"
SET_MARK = "mimokit.engine.training.monitor.set_mark"
BLOCKS_OF = "mimokit.engine.checkpoints.state.blocks_of"
HELD_BY = "mimokit.engine.checkpoints.saver.held_by"
RANDOM_OF = "mimokit.engine.checkpoints.saver.random_of"
WRITE_FILES = "mimokit.engine.checkpoints.saver.write_files"
WRITE_CHECKPOINT = "mimokit.engine.checkpoints.saver.Saver._write"
READ_INTO = "mimokit.engine.checkpoints.loading.read_into"
RANDOM_NAMES = "mimokit.engine.checkpoints.loading._random_names"
FILE_DIFFERENCE = "mimokit.planning.checkpoint_files._difference"

# Inference and weights of Hugging Face.
LOAD_LANGUAGE = "mimokit.extras.generation.network.loading.load_language"
LOAD_WEIGHTS = "mimokit.engine.models.provider.load_weights"
SHARE_TOKENS = "mimokit.extras.generation.network.generate._share"
SWAP_HALVES = "mimokit.architecture.huggingface.weight_tensors.WeightTensors.swap_halves"
ADD_MERGER = "mimokit.architecture.huggingface.qwen_vision_tensors._add_merger"

# How often a calibration measures, and how much.
REPEATS = "mimokit.engine.calibration.measure.REPEATS"
SECONDS_PER_SIZE = "mimokit.engine.calibration.timing.SECONDS_PER_SIZE"
CPU_ROWS = "mimokit.engine.calibration.timing.CPU_ROWS"
CPU_WIDTHS = "mimokit.engine.calibration.timing.CPU_WIDTHS"

# Clusters.
ENGINE_CLUSTER = "mimokit.cluster.EngineCluster"
ENGINE_CLUSTER_OF_TRAINER = "mimokit.extras.strategies.fits.trainer.EngineCluster"
WAKE_SENDER = "mimokit.cluster.worker.sender._SendingThread.wake"

# Experiments, and what is shown of them.
PLACED = "mimokit.experiment.training.with_hosts"
VERIFY = "mimokit.experiment.verify"
LIBRARY_INSTALLED = "mimokit.experiment.results.loggers._installed"
WRITE_TABLE = "mimokit.experiment.results.tables.os.write"
BLOCK_LENGTH = "mimokit.analysis.bootstrap.block_length"
REPORT_PAGE = "mimokit.charts._report.report"
IS_NOTEBOOK = "mimokit.progress._is_notebook"
SECONDS_BETWEEN_LINES = "mimokit.progress.SECONDS_BETWEEN_LINES"
SHELL_CHOICE = "mimokit_widgets._widget.defer_shell_choice"
DISPLAY_CULPRIT = "mimokit_widgets.culprit.display"
SAVED_ANSWERS = "mimokit_widgets.layout_planner.saved_answers"
KEPT_WITH = "mimokit_widgets.planner.hold.Hold.kept_with"

# Plans and predictions.
CHECK_LAYOUT = "mimokit.prediction.prediction.check_layout"
SEARCH = "mimokit.layout_search.search"
FIRST_LAYOUTS = "mimokit.layout_search.blocks.FIRST_LAYOUTS"
MOST_LAYOUTS_OF_A_BLOCK = "mimokit.layout_search.blocks.MOST_LAYOUTS"
SECONDS_BESIDE = "mimokit.layout_search.sieve.seconds_beside"
MEMORY_APART = "mimokit.layout_search.sieve.memory_apart"

# Megatron.
COLUMN_PARALLEL = "megatron.core.tensor_parallel.layers.ColumnParallelLinear.forward"
ROW_PARALLEL = "megatron.core.tensor_parallel.layers.RowParallelLinear.forward"
REDUCE_TENSOR_PARALLEL = (
    "megatron.core.tensor_parallel.layers.reduce_from_tensor_model_parallel_region"
)
MEGATRON_ATTENTION = "megatron.core.transformer.dot_product_attention.DotProductAttention.forward"
MLP = "megatron.core.transformer.mlp.MLP.forward"
PROJECTOR = "megatron.core.models.vision.multimodal_projector.MultimodalProjector.forward"
ROUTER_LOGITS = "megatron.core.transformer.moe.router.Router.gating"
TOP_K = "megatron.core.transformer.moe.router.topk_routing_with_score_function"
DISPATCH_PREPROCESS = (
    "megatron.core.transformer.moe.token_dispatcher.MoEAlltoAllTokenDispatcher.dispatch_preprocess"
)
TOKEN_DISPATCH = (
    "megatron.core.transformer.moe.token_dispatcher.MoEAlltoAllTokenDispatcher.token_dispatch"
)
TOKEN_COMBINE = (
    "megatron.core.transformer.moe.token_dispatcher.MoEAlltoAllTokenDispatcher.token_combine"
)
START_GRAD_SYNC = (
    "megatron.core.distributed.param_and_grad_buffer._ParamAndGradBucketGroup.start_grad_sync"
)
START_PARAM_SYNC = (
    "megatron.core.distributed.distributed_data_parallel.DistributedDataParallel.start_param_sync"
)
